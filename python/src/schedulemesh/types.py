"""The documents the server answers with, as the client returns them.

They are plain dicts; these types say which keys they have. Resources are in the units people write: cores,
cards, MiB of memory, plain numbers of anything else. Times of day are ISO 8601 text or None, durations
seconds. A server newer than this package may add keys.
"""

from __future__ import annotations

from typing import Any, TypedDict

Resources = dict[str, float]
Labels = dict[str, str]


class Balance(TypedDict):
    """One resource of a pool; ``reserved + used <= capacity + borrowed - lent``."""

    resource: str
    unit: str
    capacity: float
    reserved: float
    used: float
    borrowed: float
    lent: float
    free: float


class Loan(TypedDict):
    """Quota of one pool in use by another."""

    lender: str
    borrower: str
    resource: str
    amount: float


class Pool(TypedDict, total=False):
    """A pool: ``resources`` is what it owns, ``available`` what nobody holds now."""

    namespace: str
    name: str
    cluster: str
    labels: Labels
    resources: Resources
    available: Resources
    balances: list[Balance]
    loans: list[Loan]
    target_agents: int
    placement_strategy: str
    pg_pool_config: dict[str, Any] | None
    max_runtime: float | None
    hold: dict[str, Any]
    version: int
    running: int
    queued: int
    created_at: str
    links: dict[str, str]


class TaskAgent(TypedDict):
    """The Ray actor of a task's attempt."""

    name: str
    actor_name: str
    ray_namespace: str
    actor_id: str
    node_id: str
    pid: int


class Task(TypedDict, total=False):
    """A task. Lists leave out what can be large: arguments, runtime_env, payload, result, saved_state."""

    uid: str
    namespace: str
    kind: str
    task_id: str
    state: str
    phase: str
    code: str
    reason: str
    pool: str
    managed: bool
    priority: float
    labels: Labels
    resources: Resources
    held: Resources
    attempt: int
    max_attempts: int
    preemptions: int
    preempted_by: list[str]
    agent: TaskAgent
    actor_class: str
    pickled_name: str
    actor_args: list[Any]
    actor_kwargs: dict[str, Any]
    entry: dict[str, Any]
    runtime_env: dict[str, Any]
    ray_options: dict[str, Any]
    use_placement_group: bool
    payload: Any
    estimated_duration: float | None
    max_runtime: float | None
    on_preempted: str
    on_failure: str
    result: Any
    saved_state: dict[str, Any]
    queue_timeout: float | None
    queue_position: int | None
    queue: dict[str, Any]
    submitted_at: str
    queued_at: str | None
    started_at: str | None
    ended_at: str | None
    submitted_by: str
    links: dict[str, str]


class Agent(TypedDict, total=False):
    """An agent: the Ray actor that holds quota, and what runs on it."""

    uid: str
    name: str
    namespace: str
    pool: str
    state: str
    code: str
    reason: str
    resources: Resources
    labels: Labels
    task_ids: list[str]
    actor_class: str
    actor_name: str
    ray_namespace: str
    actor_id: str
    node_id: str
    pid: int
    created_at: str
    ready_at: str | None
    metrics: dict[str, Any] | None
    metrics_at: str | None
    links: dict[str, str]


class Candidate(TypedDict, total=False):
    """A task that would have to make way, and why. ``remaining_time`` in seconds."""

    task_id: str
    task_uid: str
    agent_name: str
    pool_name: str
    priority: float
    preempt_score: float
    reason: str
    remaining_time: float
    priority_delta: float
    score_base: float
    label: dict[str, str]


class Evaluation(TypedDict, total=False):
    """Who would make way. ``decision`` only when resources were given."""

    should_preempt: bool
    candidates: list[Candidate]
    policy_version: int
    decision: dict[str, Any]


class Execution(TypedDict, total=False):
    """What a preemption by hand did."""

    success: bool
    task_id: str
    agent_name: str
    pool_name: str
    cancel_success: bool
    saved_state: dict[str, Any] | None
    error: str
    preemption_id: int
    phase: str


class Preemption(TypedDict, total=False):
    """One task that made way: decision, phases and outcome."""

    id: int
    namespace: str
    task_id: str
    task_uid: str
    preemptor_task_id: str
    preemptor_uid: str
    preemptor_pool: str
    agent_name: str
    pool_name: str
    priority: float
    reason: str
    preempt_score: float
    explanation: Any
    policy_version: int
    phase: str
    taken: Resources
    loan: bool
    cancel_success: bool | None
    cancel_error: str
    save_error: str
    saved_state: dict[str, Any] | None
    decided_at: str
    cancelled_at: str | None
    saved_at: str | None
    gone_at: str | None
    running_at: str | None
    actor: str


class RecentPreemption(TypedDict):
    """A preemption as statistics show it; ``timestamp`` in seconds since the Unix epoch."""

    timestamp: float
    task_id: str
    preemptor_task_id: str
    agent_name: str
    pool_name: str
    priority: float
    reason: str
    cancel_success: bool | None
    saved_state: dict[str, Any] | None


class PreemptionStats(TypedDict):
    """Figures of preemption since the scheduler began."""

    total_preemptions: int
    same_pool_preemptions: int
    cross_pool_preemptions: int
    label_preemptions: int
    failed_cancels: int
    running_tasks: int
    recent_preemptions: list[RecentPreemption]


class Policy(TypedDict):
    """One version of the rules."""

    version: int
    policy: dict[str, Any]
    author: str
    comment: str
    created_at: str
    warnings: list[str]


class Health(TypedDict, total=False):
    """The state of all agents: names in each list, and why for those that are unhealthy."""

    success: bool
    checked: int
    healthy: list[str]
    starting: list[str]
    unhealthy: list[dict[str, str]]
    removed: list[str]
    recreated: list[str]


class Namespace(TypedDict, total=False):
    """An isolated set of pools, tasks and policy: what a scheduler's name stands for."""

    name: str
    ephemeral: bool
    session_owner: str
    expires_at: str | None
    closing: bool
    created: bool
    cleared: bool
    pools: int
    live_tasks: int
    agents: int


class Node(TypedDict, total=False):
    """A machine of a Ray cluster: what it has, and what is left of it."""

    node_id: str
    cluster: str
    total: Resources
    free: Resources
    agents: int
    known: bool
    hold: dict[str, Any]


class Event(TypedDict, total=False):
    """One transition, as timelines show it."""

    id: int
    at: str
    task_id: str
    pool: str
    attempt: int
    type: str
    actor: str
    code: str
    message: str
    detail: Any
    policy_version: int


class LogChunk(TypedDict):
    """A piece of an agent's output; offsets in bytes."""

    task_id: str
    stream: str
    text: str
    offset: int
    next_offset: int
    ended: bool


class ServerInfo(TypedDict, total=False):
    """What a server says of itself; the ray_ fields are empty until its sidecar is up."""

    version: str
    deployment: str
    ray_address: str
    ray_version: str
    python_version: str
    url: str


# Jobs.


class Cluster(TypedDict, total=False):
    """A Ray cluster that jobs may go to: how it is configured, and how it was when it was last asked."""

    name: str
    source: str
    head_address: str
    dashboard: str
    runtime_env: dict[str, Any]
    prefer: bool
    weight: float
    tags: list[str]
    token: dict[str, str]
    max_resources: Resources
    rev: int
    hold: dict[str, Any]
    state: str
    since: str
    error: str
    ray_version: str
    session: str
    resources: dict[str, Resources]
    nodes: list[dict[str, Any]]
    score: float
    reasons: list[str]
    breaker: str
    retry_at: str
    latency_ms: float
    checked_at: str
    seen_at: str
    alive_nodes: int
    jobs: dict[str, int]
    links: dict[str, str]


class Job(TypedDict, total=False):
    """A job and what became of it. ``state`` is ours, ``status`` the same in Ray's words."""

    uid: str
    submission_id: str
    job_id: str
    entrypoint: str
    state: str
    status: str
    code: str
    reason: str
    cluster: str
    ray_submission_id: str
    attempt: int
    preferred_cluster: str
    resource_requirements: dict[str, float]
    reserve: str
    priority: float
    queue_timeout: float
    queue_position: int
    max_retries: int
    retry_on: list[str]
    runtime_env: dict[str, Any]
    merged_runtime_env: dict[str, Any]
    metadata: dict[str, str]
    tags: list[str]
    placement: dict[str, Any]
    tried: list[dict[str, Any]]
    notes: list[str]
    stop_requested_by: str
    stop_requested_at: str
    exit_code: int
    error_type: str
    message: str
    created_at: str
    queued_at: str
    placed_at: str
    accepted_at: str
    started_at: str
    ended_at: str
    submitted_by: str
    links: dict[str, str]


class JobLog(TypedDict, total=False):
    """A piece of what a job printed; ``next`` is the offset behind it, in bytes. ``kept``: its cluster has it
    no more, and this is the end of it, which was kept."""

    text: str
    next: int
    ended: bool
    kept: bool
