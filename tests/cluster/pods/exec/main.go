// Command exec runs the commands of `kubectl exec` for the node of the tests, as the streaming server of a container runtime does. It
// prints its address, and ends with its standard input.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

const (
	idleTimeout     = time.Minute
	creationTimeout = 10 * time.Second
)

// processes runs each command as a process. The node enters the container in the command itself.
type processes struct{}

// ExecInContainer runs a command until it ends or the client disconnects. A terminal is not supported.
func (processes) ExecInContainer(ctx context.Context, _, _, _ string, command []string, in io.Reader, out, err io.WriteCloser,
	tty bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if tty || len(command) == 0 {
		return errors.New("a command without a terminal is expected")
	}
	process := exec.CommandContext(ctx, command[0], command[1:]...)
	process.Stdin, process.Stdout, process.Stderr = in, out, err
	failure := process.Run()
	var exit *exec.ExitError
	if errors.As(failure, &exit) {
		return utilexec.CodeExitError{Err: failure, Code: exit.ExitCode()}
	}
	return failure
}

func serve(response http.ResponseWriter, request *http.Request) {
	options, err := remotecommand.NewOptions(request)
	if err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(response, request, processes{}, "", "", "", request.Form["command"], options, idleTimeout, creationTimeout,
		remotecommand.SupportedStreamingProtocols)
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	go func() {
		log.Fatal(http.Serve(listener, http.HandlerFunc(serve)))
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}
