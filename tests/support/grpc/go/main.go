// An application of the end-to-end tests with the gRPC library of Go, which reads the configuration of the mesh itself.
//
// It has the flags, commands and answers of app.py (see sluice_testkit::pods::grpc_app).
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"
)

// A command to the application: a line of standard input.
type command struct {
	ID  uint64 `json:"id"`
	Run action `json:"run"`
}

// What a command does: an object with one field, or a text.
type action struct {
	Call *call `json:"Call"`
	Stop *struct {
		GraceSeconds uint32 `json:"grace_seconds"`
	} `json:"Stop"`
	Resources bool `json:"-"`
}

func (a *action) UnmarshalJSON(text []byte) error {
	if string(text) == `"Resources"` {
		a.Resources = true
		return nil
	}
	type fields action
	return json.Unmarshal(text, (*fields)(a))
}

// The reply to a command: a line of standard output.
type reply struct {
	ID      uint64 `json:"id"`
	Outcome any    `json:"outcome"`
}

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	identity := identity{}
	var listen, listenPlain []string
	repeated := func(values *[]string) func(string) error {
		return func(value string) error {
			*values = append(*values, value)
			return nil
		}
	}
	flag.StringVar(&identity.Name, "name", "", "name in the answers")
	flag.StringVar(&identity.Version, "version", "", "version in the answers")
	flag.Func("listen", "address to serve on, repeatable", repeated(&listen))
	flag.Func("listen-plain", "the same, without configuration of the mesh", repeated(&listenPlain))
	flag.Parse()

	servers, err := serve(newHandler(identity), listen, listenPlain)
	if err != nil {
		log.Fatalf("start the servers: %v", err)
	}
	if err := runCommands(os.Stdin, os.Stdout, newClient(), servers); err != nil {
		log.Fatalf("run the commands: %v", err)
	}
}

// runCommands answers concurrent commands until the input ends.
func runCommands(input io.Reader, output io.Writer, client *client, servers []server) error {
	var lock sync.Mutex
	encoder := json.NewEncoder(output)
	answer := func(id uint64, outcome any) {
		lock.Lock()
		defer lock.Unlock()
		if err := encoder.Encode(reply{id, outcome}); err != nil {
			log.Fatalf("write the reply to command %d: %v", id, err)
		}
	}
	answer(0, nil)
	lines := bufio.NewReader(input)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var command command
		if err := json.Unmarshal(line, &command); err != nil {
			return fmt.Errorf("parse %s: %w", line, err)
		}
		go func() {
			outcome, err := run(&command.Run, client, servers)
			if err != nil {
				// Without a reply the test would wait: it reports that the application has ended.
				log.Fatalf("command %s: %v", line, err)
			}
			answer(command.ID, outcome)
		}()
	}
}

func run(action *action, client *client, servers []server) (any, error) {
	switch {
	case action.Call != nil:
		return client.run(action.Call)
	case action.Resources:
		return resources()
	case action.Stop != nil:
		stop(servers, time.Duration(action.Stop.GraceSeconds)*time.Second)
		return nil, nil
	default:
		return nil, fmt.Errorf("an unknown command")
	}
}
