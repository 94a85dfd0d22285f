package main

import (
	"encoding/json"

	"google.golang.org/grpc/mem"
)

// jsonCodec encodes messages as JSON, the form of the messages of all applications of the tests.
type jsonCodec struct{}

func (jsonCodec) Marshal(value any) (mem.BufferSlice, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(text)}, nil
}

func (jsonCodec) Unmarshal(data mem.BufferSlice, value any) error {
	return json.Unmarshal(data.Materialize(), value)
}

func (jsonCodec) Name() string { return "json" }

// The message of a call.
type request struct {
	Failure      *failure `json:"failure"`
	DelaySeconds uint32   `json:"delay_seconds"`
}

// A server fails the first calls with a key.
type failure struct {
	Code  string `json:"code"`
	First uint32 `json:"first"`
	Key   string `json:"key"`
}

// The application that answers.
type identity struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// The message of an answer: the application, and the call as it arrived.
type answer struct {
	identity
	Path        string            `json:"path"`
	Metadata    map[string]string `json:"metadata"`
	Identities  []string          `json:"identities"`
	Certificate string            `json:"certificate"`
}
