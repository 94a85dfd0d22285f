"""An application of the end-to-end tests with a gRPC library that reads the configuration of the mesh itself.

It serves on the given addresses, and answers each call with one JSON object: the application, and the call as it arrived.
Commands come as JSON lines on standard input, and each is answered by one JSON line on standard output (see
`sluice_testkit::pods::grpc_app`).
"""

import argparse
import collections
import concurrent.futures
import json
import os
import sys
import threading
import traceback

import grpc
import grpc.experimental
import grpc_csds
from envoy.admin.v3 import config_dump_shared_pb2
from envoy.service.status.v3 import csds_pb2

# The codes that are responses to calls, by name.
CODES = {code.name: code for code in grpc.StatusCode}
# Calls that are handled at a time.
WORKERS = 16


class Application(grpc.GenericRpcHandler):
    """Answers every method."""

    def __init__(self, name, version):
        self.identity = {"name": name, "version": version}
        self.failures = collections.Counter()
        self.lock = threading.Lock()

    def service(self, details):
        metadata = {key: value for key, value in details.invocation_metadata if isinstance(value, str)}

        def answer(request, context):
            request = json.loads(request)
            self.fail_first(request, context)
            ended = threading.Event()
            context.add_callback(ended.set)
            ended.wait(request["delay_seconds"])
            peer = context.auth_context()
            text = {key: [value.decode() for value in values] for key, values in peer.items() if key != "security_level"}
            call = {
                "path": details.method,
                "metadata": metadata,
                "identities": text.get("x509_subject_alternative_name", []),
                "certificate": "".join(text.get("x509_pem_cert", [])),
            }
            return json.dumps(self.identity | call).encode()

        return grpc.unary_unary_rpc_method_handler(answer)

    def fail_first(self, request, context):
        """Fails the first calls with a key with the requested code."""
        failure = request["failure"]
        if failure is None:
            return
        with self.lock:
            self.failures[failure["key"]] += 1
            count = self.failures[failure["key"]]
        if count <= failure["first"]:
            context.abort(CODES[failure["code"]], f"failure {count} of {failure['key']}")


class Client:
    """Sends calls on one channel for each target and kind of credentials."""

    def __init__(self):
        self.channels = {}

    @staticmethod
    def open(target, plaintext):
        # Without sharing of connections, a new channel has a new connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        if plaintext:
            return grpc.insecure_channel(target, options)
        # Clusters without TLS in the configuration need these credentials.
        fallback = grpc.experimental.insecure_channel_credentials()
        return grpc.secure_channel(target, grpc.xds_channel_credentials(fallback), options)

    def channel(self, call):
        key = (call["target"], call["plaintext"])
        if key not in self.channels:
            self.channels[key] = self.open(*key)
        return self.channels[key]

    def call(self, call):
        """Sends equal calls one after the other. Returns the number of answers by application or code, and the last one."""
        channel = self.open(call["target"], call["plaintext"]) if call["new_connection"] else self.channel(call)
        method = channel.unary_unary(call["path"])
        request = json.dumps({"failure": call["failure"], "delay_seconds": call["delay_seconds"]}).encode()
        metadata = list(call["metadata"].items())
        counts, last = collections.Counter(), None
        for _ in range(call["count"]):
            try:
                last = json.loads(method(request, timeout=call["timeout_seconds"], metadata=metadata))
                counts[f"{last['name']} {last['version']}"] += 1
            except grpc.RpcError as error:
                last = {"error": error.details()}
                counts[error.code().name] += 1
        if call["new_connection"]:
            channel.close()
        return {"counts": counts, "last": last}


def resources():
    """The resources of the library's xDS clients, as CSDS shows them."""
    response = grpc_csds.ClientStatusDiscoveryServiceServicer.FetchClientStatus(csds_pb2.ClientStatusRequest(), None)
    return [
        {
            "type": resource.type_url.rsplit(".", 1)[-1],
            "name": resource.name,
            "status": config_dump_shared_pb2.ClientResourceStatus.Name(resource.client_status),
            "error": resource.error_state.details,
        }
        for config in response.config
        for resource in config.generic_xds_configs
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", action="append", default=[], help="address to serve on, repeatable")
    parser.add_argument("--listen-plain", action="append", default=[], help="the same, without configuration of the mesh")
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    arguments = parser.parse_args()

    application = Application(arguments.name, arguments.version)
    servers = []

    def serve(addresses, credentials, xds):
        if addresses:
            workers = concurrent.futures.ThreadPoolExecutor(WORKERS)
            server = grpc.server(workers, [application], xds=xds)
            for address in addresses:
                server.add_secure_port(address, credentials)
            server.start()
            servers.append(server)

    insecure = grpc.insecure_server_credentials()
    serve(arguments.listen, grpc.xds_server_credentials(insecure), xds=True)
    serve(arguments.listen_plain, insecure, xds=False)
    client = Client()
    output = threading.Lock()

    def reply(number, outcome):
        with output:
            print(json.dumps({"id": number, "outcome": outcome}), flush=True)

    def run(command):
        try:
            match command["run"]:
                case {"Call": call}:
                    outcome = client.call(call)
                case "Resources":
                    outcome = resources()
                case {"Stop": {"grace_seconds": grace}}:
                    for stopped in [server.stop(grace) for server in servers]:
                        stopped.wait()
                    outcome = None
            reply(command["id"], outcome)
        except Exception:
            # Without a reply the test would wait: it reports that the application has ended.
            traceback.print_exc()
            os._exit(1)

    reply(0, None)
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as commands:
        for line in sys.stdin:
            commands.submit(run, json.loads(line))


if __name__ == "__main__":
    main()
