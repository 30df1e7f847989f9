"""The root of the command line."""

from __future__ import annotations

import click

from schedulemesh import __version__
from schedulemesh.cli import clusters, follow, jobs, policy, pools, preemption, servers, submit, tasks, top
from schedulemesh.cli.context import Group


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="schedulemesh %(version)s")
def app() -> None:
    """Priority scheduling and preemption for Ray.

    `schedulemesh up` starts a server on this machine; the other commands ask one. Every command takes the
    options below, before or after its name, and --help.
    """


for command in (
    servers.up,
    servers.status,
    pools.pools,
    tasks.tasks,
    submit.submit,
    jobs.jobs,
    clusters.clusters,
    preemption.preempt,
    preemption.evaluate,
    policy.policy,
    follow.logs,
    follow.events,
    top.top,
    servers.namespaces,
    servers.completion,
    servers.version,
):
    app.add_command(command)
