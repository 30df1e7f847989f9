"""``python -m schedulemesh.bridge``: the sidecar's process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from typing import Any

log = logging.getLogger("schedulemesh.bridge")

#: Without a word from Ray for so many seconds the sidecar gives up and ends.
RAY_SILENCE = 20.0


class JsonLines(logging.Formatter):
    """Log records as JSON objects, one a line."""

    def format(self, record: logging.LogRecord) -> str:
        out = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "msg": record.getMessage(),
            "logger": record.name,
        }
        if record.exc_info:
            out["traceback"] = self.formatException(record.exc_info)
        return json.dumps(out)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line.

    Raises:
        SystemExit: it is wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m schedulemesh.bridge", description=__doc__)
    parser.add_argument("--deployment", required=True, help="whose agents these are")
    parser.add_argument("--ray-address", default="auto", help="host:port of Ray's head (default: auto)")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", help="unix socket to listen on; only this user may connect")
    where.add_argument("--listen", help="host:port to listen on; needs a token")
    parser.add_argument("--token-file", help="file with the bearer token (or SCHEDULEMESH_BRIDGE_TOKEN)")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input closes")
    parser.add_argument("--log-level", default="INFO")
    return parser.parse_args(argv)


def token_of(args: argparse.Namespace) -> str:
    """The bearer token, empty for none.

    Raises:
        SystemExit: one is needed and there is none.
    """
    token = os.environ.get("SCHEDULEMESH_BRIDGE_TOKEN", "")
    if args.token_file:
        with open(args.token_file) as file:
            token = file.read().strip()
    if args.listen and not token:
        raise SystemExit("--listen needs a token: give --token-file or SCHEDULEMESH_BRIDGE_TOKEN")
    return token


def watch_lifeline(stop: Any) -> None:
    """Call ``stop`` when standard input ends; if that does not end the process, end it."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        stop()
        time.sleep(5.0)
        os._exit(0)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def bind(path: str) -> socket.socket:
    """A listening unix socket only this user may connect to. A stale one in its place is removed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        sock.bind(path)
    finally:
        os.umask(before)
    sock.listen(128)
    return sock


async def serve(args: argparse.Namespace, token: str) -> None:
    """Connect to Ray, find what earlier sidecars left, and serve until told to stop."""
    from aiohttp import web

    from schedulemesh.bridge import actors
    from schedulemesh.bridge.agents import Agents
    from schedulemesh.bridge.caller import Caller
    from schedulemesh.bridge.events import Events
    from schedulemesh.bridge.server import Server, about
    from schedulemesh.bridge.store import Store

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    if args.lifeline:
        watch_lifeline(lambda: loop.call_soon_threadsafe(stop.set))

    session = secrets.token_hex(8)
    namespace = f"schedulemesh-{args.deployment}"
    events = Events(session)
    store = Store(args.deployment, session)
    agents = Agents(args.deployment, namespace, session, store, events)
    await agents.nodes.look(force=True)
    await asyncio.gather(agents.recover(), asyncio.to_thread(actors.export))
    hello = about(args.deployment, session, namespace)
    server = Server(agents, Caller(agents.nodes), store, events, hello, token)
    runner = web.AppRunner(server.app(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    if args.socket:
        await web.SockSite(runner, bind(args.socket)).start()
    else:
        host, _, port = args.listen.rpartition(":")
        await web.TCPSite(runner, host.strip("[]"), int(port)).start()
    background = [
        asyncio.create_task(agents.nodes.watch()),
        asyncio.create_task(agents.groups.watch()),
        asyncio.create_task(server.keep_claim()),
        asyncio.create_task(_end_with_ray(agents.nodes)),
    ]
    log.info(
        "serving deployment %s, session %s, %d launches found", args.deployment, session, len(agents.records)
    )
    await stop.wait()
    log.info("stopping")
    server.closing.set()
    for task in background:
        task.cancel()
    await agents.flush()
    await asyncio.to_thread(store.release_claim)
    await runner.cleanup()
    await agents.nodes.close()
    if args.socket:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(args.socket)


async def _end_with_ray(nodes: Any) -> None:
    """End the process when Ray is gone, or this node of it: whoever started the sidecar starts another.

    It goes without goodbyes: nobody is left to take them, and Ray's own calls would wait a minute.
    """
    while True:
        await asyncio.sleep(1.0)
        own = nodes.nodes.get(nodes.own_id)
        if own is not None and not own.alive:
            log.error("this node has left the Ray cluster")
        elif time.monotonic() - nodes.last_seen > RAY_SILENCE:
            log.error("Ray has not answered for %.0f s", RAY_SILENCE)
        else:
            continue
        os._exit(1)


def main(argv: list[str] | None = None) -> None:
    """Run the sidecar."""
    args = arguments(argv)
    token = token_of(args)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=args.log_level.upper(), handlers=[handler], force=True)
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

    import ray

    ray.init(
        address=args.ray_address,
        namespace=f"schedulemesh-{args.deployment}",
        log_to_driver=False,
        configure_logging=False,
        include_dashboard=False,
    )
    # Ray's state API, which reads logs on other nodes, goes by this; it may have named another cluster.
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    try:
        asyncio.run(serve(args, token))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
