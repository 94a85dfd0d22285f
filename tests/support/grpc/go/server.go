package main

import (
	"encoding/pem"
	"log"
	"net"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
)

// server is a running server with or without configuration of the mesh.
type server interface {
	Serve(net.Listener) error
	GracefulStop()
	Stop()
}

// serve starts the servers of both lists of addresses.
func serve(handler *handler, listen, listenPlain []string) ([]server, error) {
	options := []grpc.ServerOption{grpc.ForceServerCodecV2(jsonCodec{}), grpc.UnknownServiceHandler(handler.handle)}
	var servers []server
	start := func(server server, addresses []string) error {
		servers = append(servers, server)
		for _, address := range addresses {
			listener, err := net.Listen("tcp", address)
			if err != nil {
				return err
			}
			go func() {
				if err := server.Serve(listener); err != nil {
					log.Fatalf("serve on %s: %v", listener.Addr(), err)
				}
			}()
		}
		return nil
	}
	if len(listen) > 0 {
		credentials, err := xdscredentials.NewServerCredentials(
			xdscredentials.ServerOptions{FallbackCreds: insecure.NewCredentials()})
		if err != nil {
			return nil, err
		}
		server, err := xds.NewGRPCServer(append(options, grpc.Creds(credentials))...)
		if err != nil {
			return nil, err
		}
		if err := start(server, listen); err != nil {
			return nil, err
		}
	}
	if len(listenPlain) > 0 {
		if err := start(grpc.NewServer(options...), listenPlain); err != nil {
			return nil, err
		}
	}
	return servers, nil
}

// stop ends servers: clients are told to connect elsewhere, and calls that run longer than the grace period are cancelled.
func stop(servers []server, grace time.Duration) {
	var stopped sync.WaitGroup
	for _, server := range servers {
		stopped.Go(func() {
			timer := time.AfterFunc(grace, server.Stop)
			defer timer.Stop()
			server.GracefulStop()
		})
	}
	stopped.Wait()
}

// handler answers every method.
type handler struct {
	identity identity
	lock     sync.Mutex
	failures map[string]uint32
}

func newHandler(identity identity) *handler {
	return &handler{identity: identity, failures: map[string]uint32{}}
}

func (h *handler) handle(_ any, stream grpc.ServerStream) error {
	var request request
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	if err := h.failFirst(request.Failure); err != nil {
		return err
	}
	select {
	case <-time.After(time.Duration(request.DelaySeconds) * time.Second):
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
	return stream.SendMsg(h.answer(stream))
}

// failFirst fails the first calls with a key with the requested code.
func (h *handler) failFirst(failure *failure) error {
	if failure == nil {
		return nil
	}
	h.lock.Lock()
	h.failures[failure.Key]++
	count := h.failures[failure.Key]
	h.lock.Unlock()
	if count > failure.First {
		return nil
	}
	return status.Errorf(codes.Code(code.Code_value[failure.Code]), "failure %d of %s", count, failure.Key)
}

func (h *handler) answer(stream grpc.ServerStream) *answer {
	path, _ := grpc.MethodFromServerStream(stream)
	answer := &answer{identity: h.identity, Path: path, Metadata: map[string]string{}, Identities: []string{}}
	received, _ := metadata.FromIncomingContext(stream.Context())
	for key, values := range received {
		answer.Metadata[key] = values[0]
	}
	caller, _ := peer.FromContext(stream.Context())
	tls, isTLS := caller.AuthInfo.(credentials.TLSInfo)
	if isTLS && len(tls.State.PeerCertificates) > 0 {
		certificate := tls.State.PeerCertificates[0]
		answer.Identities = append(answer.Identities, certificate.DNSNames...)
		for _, uri := range certificate.URIs {
			answer.Identities = append(answer.Identities, uri.String())
		}
		block := pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}
		answer.Certificate = string(pem.EncodeToMemory(&block))
	}
	return answer
}
