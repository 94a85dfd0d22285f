package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	statuspb "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds/csds"
)

// call is a number of equal calls, one after the other.
type call struct {
	Target         string            `json:"target"`
	Count          uint32            `json:"count"`
	TimeoutSeconds uint32            `json:"timeout_seconds"`
	Plaintext      bool              `json:"plaintext"`
	NewConnection  bool              `json:"new_connection"`
	Path           string            `json:"path"`
	Metadata       map[string]string `json:"metadata"`
	request
}

// outcome has the number of answers by application or code, and the last one: an answer, or an error.
type outcome struct {
	Counts map[string]uint32 `json:"counts"`
	Last   any               `json:"last"`
}

// channelKey identifies a shared channel.
type channelKey struct {
	target    string
	plaintext bool
}

// client sends calls on one channel for each target and kind of credentials.
type client struct {
	lock     sync.Mutex
	channels map[channelKey]*grpc.ClientConn
}

func newClient() *client { return &client{channels: map[channelKey]*grpc.ClientConn{}} }

func open(key channelKey) (*grpc.ClientConn, error) {
	var transport credentials.TransportCredentials = insecure.NewCredentials()
	if !key.plaintext {
		// Clusters without TLS in the configuration need the fallback.
		ofMesh, err := xdscredentials.NewClientCredentials(xdscredentials.ClientOptions{FallbackCreds: transport})
		if err != nil {
			return nil, err
		}
		transport = ofMesh
	}
	return grpc.NewClient(key.target, grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(jsonCodec{})))
}

func (c *client) channel(key channelKey) (*grpc.ClientConn, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if channel := c.channels[key]; channel != nil {
		return channel, nil
	}
	channel, err := open(key)
	if err == nil {
		c.channels[key] = channel
	}
	return channel, err
}

func (c *client) run(call *call) (*outcome, error) {
	key := channelKey{call.Target, call.Plaintext}
	if !call.NewConnection {
		channel, err := c.channel(key)
		if err != nil {
			return nil, err
		}
		return send(channel, call), nil
	}
	channel, err := open(key)
	if err != nil {
		return nil, err
	}
	defer channel.Close()
	return send(channel, call), nil
}

// send sends the calls on a channel.
func send(channel *grpc.ClientConn, call *call) *outcome {
	outcome := &outcome{Counts: map[string]uint32{}}
	pairs := []string{}
	for _, key := range slices.Sorted(maps.Keys(call.Metadata)) {
		pairs = append(pairs, key, call.Metadata[key])
	}
	for range call.Count {
		timeout := time.Duration(call.TimeoutSeconds) * time.Second
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), pairs...), timeout)
		var answer answer
		if err := invoke(ctx, channel, call, &answer); err != nil {
			failed := status.Convert(err)
			outcome.Counts[code.Code_name[int32(failed.Code())]]++
			outcome.Last = map[string]string{"error": failed.Message()}
		} else {
			outcome.Counts[fmt.Sprintf("%s %s", answer.Name, answer.Version)]++
			outcome.Last = answer
		}
		cancel()
	}
	return outcome
}

// invoke sends one call. The library uses the clusters of a new route before its load balancer has them, and fails the
// calls of that moment. Such a call is repeated until its timeout, so a cluster that never arrives fails it.
func invoke(ctx context.Context, channel *grpc.ClientConn, call *call, answer *answer) error {
	for {
		err := channel.Invoke(ctx, call.Path, &call.request, answer)
		if !strings.HasPrefix(status.Convert(err).Message(), "unknown cluster selected for RPC") {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// resource is a resource that the library subscribes to.
type resource struct {
	Type   string `json:"type"`
	Name   string `json:"name"`
	Status string `json:"status"`
	Error  string `json:"error"`
}

// resources returns the resources of the library's xDS clients, as CSDS shows them.
func resources() ([]resource, error) {
	server, err := csds.NewClientStatusDiscoveryServer()
	if err != nil {
		return nil, err
	}
	defer server.Close()
	response, err := server.FetchClientStatus(context.Background(), &statuspb.ClientStatusRequest{})
	if err != nil {
		return nil, err
	}
	all := []resource{}
	for _, config := range response.GetConfig() {
		for _, found := range config.GetGenericXdsConfigs() {
			url := found.GetTypeUrl()
			all = append(all, resource{
				Type:   url[strings.LastIndex(url, ".")+1:],
				Name:   found.GetName(),
				Status: found.GetClientStatus().String(),
				Error:  found.GetErrorState().GetDetails(),
			})
		}
	}
	return all, nil
}
