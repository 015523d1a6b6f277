"""Every option of the daemon, and every limit with its unit and reason.

Checks each value and how they go together. Does not know where values come from, and
opens nothing.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from warmshelf._security import PLAIN, Security, Tls
from warmshelfd.certificates import CertificateFiles
from warmshelfd.domain.roles import Role
from warmshelfd.formats.base import FormatLimits
from warmshelfd.identities import ANY_TENANT, IdentitySettings
from warmshelfd.logs import LogFormat
from warmshelfd.memory.pinning import PinPolicy
from warmshelfd.options import (
    Advertised,
    Network,
    Share,
    parse_advertised,
    parse_network,
    parse_share,
)
from warmshelfd.pushes import PushLimits
from warmshelfd.registry.residents import check_name
from warmshelfd.setting_types import (
    CHUNK_HEAD_BYTES,
    GRPC_NUMBER_MAX,
    Address,
    ChunkSize,
    Count,
    Seconds,
    Size,
    check_endpoint,
    check_http,
    check_path,
    check_preload,
    check_registry_uri,
    check_source,
    check_spool,
)
from warmshelfd.sources.breaker import BreakerLimits
from warmshelfd.sources.limits import TimeLimits
from warmshelfd.sources.settings import Secret, SourceSettings
from warmshelfd.spool.place import check_directory
from warmshelfd.tenant_settings import TenantSettings, check_tenants

_FORMAT = FormatLimits()
_TIME = TimeLimits()
_BREAKER = BreakerLimits()


class Settings(BaseSettings):
    """Everything the daemon is told, checked."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", validate_default=False, use_attribute_docstrings=True
    )

    # --- options of the command line ----------------------------------------

    listen: Annotated[tuple[Address, ...], Field(min_length=1)]
    """`unix:///PATH` or `HOST:PORT`. Default: `api.sock` in `$XDG_RUNTIME_DIR/warmshelf` or `/tmp/warmshelf-$UID`."""
    insecure: bool = False
    """Lets TCP be plain beyond loopback: whoever reaches the address has the `anonymous_roles`. Off by default."""
    listen_cert_file: str | None = None
    """PEM file of the daemon's certificate and its chain. With it, TCP is TLS, all of it. Default: none."""
    listen_key_file: str | None = None
    """PEM file of its key."""
    listen_client_ca_file: str | None = None
    """PEM file of authorities: every TCP caller shows a certificate of one of them. Default: none, tokens decide."""
    anonymous_roles: tuple[Role, ...] = (Role.OPERATOR,)
    """What callers may do that have no identity: at Unix sockets, whose mode decides who comes, and over plain TCP.
    Any of `reader`, `registrar`, `operator`. Default: `operator`, which is everything."""
    identity: tuple[IdentitySettings, ...] = ()
    """Who callers are; tables `[[identity]]`, only in the file."""
    tenant: tuple[TenantSettings, ...] = ()
    """Whose artifacts are kept apart, and what memory each has; tables `[[tenant]]`, only in the file."""
    credentials_seconds: Seconds = 2.0
    """How often certificates, keys and tokens are read again. A new token counts by then, a certificate at the
    look after."""
    arena: Annotated[str, AfterValidator(check_directory)]
    """Directory of the segments, on a memory file system. Default: `/dev/shm/warmshelf-$UID`."""
    budget: Size | None = None
    """Bytes the arena may hold. Default: half of what its file system has free, or what the cgroup leaves if less."""
    adapter_floor: Annotated[Share, BeforeValidator(parse_share)] = Share(percent=20)
    """What bases must leave to resident adapters: bytes, or a share of the budget. Default: `20%`."""
    pin: PinPolicy = PinPolicy.PREFER
    """Whether segments are page-locked: `prefer`, `require` or `off`. Default: `prefer`."""
    registry: Annotated[str, AfterValidator(check_registry_uri)]
    """`sqlite:///PATH`; or what nodes share: `redis://HOST:PORT/DB`, `redis+sentinel://HOST:PORT,.../NAME/DB`,
    `redis+cluster://HOST:PORT,...`, and `rediss` for TLS. Default: `warmshelf/registry.sqlite` in
    `$XDG_STATE_HOME`, else in `~/.local/state`."""
    registry_copy: Annotated[str, AfterValidator(check_path)] = ""
    """File that keeps this node's copy of a registry in Redis. Default: where the registry is by default."""
    registry_username: str = ""
    """User at a registry in Redis. Default: Redis' own default user."""
    registry_password: Secret | None = None
    """Password at a registry in Redis, as `env:NAME` or `file:/PATH`. Default: none."""
    registry_ca_file: str | None = None
    """PEM file of the authorities that are trusted for a registry in Redis over TLS. Default: the system's."""
    node_name: Annotated[str, AfterValidator(check_name)] | None = None
    """What other nodes and routers are told that this node is called. Default: the host's name."""
    node_zone: Annotated[str, AfterValidator(check_name)] | None = None
    """Where they are told that it is, such as a rack or a zone; of neighbours, those of the same come first.
    Default: nothing."""
    advertise: Annotated[Advertised, BeforeValidator(parse_advertised)] | None = None
    """`IP` or `IP:PORT` at which they are told to reach it; without a port, that of the first TCP
    address listened on which has this IP, or every one. Default: nothing."""
    neighbours: tuple[Annotated[Network, BeforeValidator(parse_network)], ...] = ()
    """Networks of other nodes, such as `10.0.0.0/8`, that loads may take bytes from which are pinned. Default: none."""
    neighbour_server_name: str = ""
    """Name that the certificates of other nodes must have, where TCP is TLS. Default: their address."""
    spool: Annotated[str, AfterValidator(check_spool)] = ""
    """What keeps what clients push: a directory, or a place that all nodes reach, such as `s3://bucket/pushed` or
    `redis://HOST:PORT/DB/pushed`. Default: a directory beside the registry's file, such as `registry.spool`."""
    spool_staging: Annotated[str, AfterValidator(check_directory)] = ""
    """Directory of pushes on their way to a spool that is none. Default: where the spool is by default."""
    allow_source: tuple[Annotated[str, AfterValidator(check_source)], ...] = ()
    """Prefixes that sources may lie under, such as `file:///models`; all else is refused. Default: the current
    directory, while only Unix sockets are listened on and it is not `/`; else nothing."""
    source: tuple[SourceSettings, ...] = ()
    """How sources below a prefix are reached, and with what credentials; tables `[[source]]`, only in the file."""
    declare: str | None = None
    """TOML file of artifacts to register, and patterns of IDs; read again when it changes. Default: none."""
    preload: tuple[Annotated[str, AfterValidator(check_preload)], ...] = ()
    """IDs to make resident at start, begun in this order. Default: none."""
    restore: bool = True
    """Whether what was in memory before a reboot is loaded again, the last used first, as far as it fits; after the
    preload, behind everybody who asks for something. Default: yes."""
    base_idle_seconds: Seconds | None = None
    """A base that nobody has used or held for so long is evicted. Default: none is, before its room is wanted."""
    http: Annotated[Address, AfterValidator(check_http)] | None = None
    """`HOST:PORT` of the status page, `/metrics`, `/startupz`, `/readyz` and `/livez`. Off by default."""
    log_format: LogFormat = LogFormat.AUTO
    """How the log's lines look: `json`, `text`, or `auto`: text on a terminal, else JSON. Default: `auto`."""
    traceable: bool = False
    """Lets processes of the daemon's own user look into it and trace it, as debuggers and profilers do, and lets it
    leave core dumps. They see keys and could write to segments. Off by default."""
    purge: bool = False
    """Empty the arena and exit. Only on the command line."""

    # --- limits: clients ----------------------------------------------------

    artifact_count_max: Count = 100_000
    """Most artifacts known; one takes some KB of memory, and more for a long config."""
    sessions_max: Count = 4096
    """Most open sessions; a worker process has one."""
    leases_max: Count = 100_000
    """Most leases of all sessions; one takes 0.5 KB."""
    leases_per_session_max: Count = 16_384
    """Most leases of one session, so that one worker that forgets to release does not starve the others."""
    change_count_max: Count = 100_000
    """Most changes kept for watchers that were away; who was away for longer begins anew."""
    streams_max: Count = 1024
    """Most reads that stream at once; each may have a small chunk under way."""
    streams_per_session_max: Count = 256
    """Most of those of one session, so that a worker whose readers stall leaves the others theirs."""
    calls_per_connection_max: Annotated[Count, Field(le=GRPC_NUMBER_MAX)] = 1024
    """Most calls of one connection that are answered at once; further ones wait in the client."""
    message_bytes_max: Annotated[Size, Field(le=GRPC_NUMBER_MAX)] = 1 << 20
    """Longest request; the longest that makes sense names some hundred features."""
    call_metadata_bytes_max: Annotated[Size, Field(le=GRPC_NUMBER_MAX)] = 16 << 10
    """Most bytes in a call's metadata, which our clients do not use."""

    # --- limits: chunks and time --------------------------------------------

    chunk_bytes: ChunkSize = 1 << 20
    """Size of a chunk, a power of two: a block's, whose CRC is known already. 1 to 2 MiB is fastest."""
    small_chunk_bytes: ChunkSize = 64 << 10
    """Size of the chunk that every stream may always send, also when readers stall."""
    flight_bytes_max: Size = 64 << 20
    """Bytes of larger chunks under way over all streams: what slow readers can cost beside small chunks."""
    stall_seconds: Seconds = 60.0
    """A stream whose reader has taken nothing for so long is ended; the reader may resume."""
    follow_seconds: Seconds = 60
    """How often the sources of followed artifacts are looked at; every node does, each file costs a stat."""
    drain_seconds: Seconds = 20.0
    """What calls under way get after SIGTERM; below the 30 s that Kubernetes waits."""
    keepalive_seconds: Annotated[Seconds, Field(le=GRPC_NUMBER_MAX // 1000)] = 10.0
    """How often a silent TCP peer is asked whether it is there; gRPC's own 2 h keep dead workers' leases."""
    keepalive_timeout_seconds: Annotated[Seconds, Field(le=GRPC_NUMBER_MAX // 1000)] = 5.0
    """How long that peer may take to answer before its connection ends."""

    trace_endpoint: Annotated[str, AfterValidator(check_endpoint)] = ""
    """Where spans are sent, by OTLP over HTTP, such as `http://collector:4318/v1/traces`. Default: nowhere."""

    stuck_seconds: Seconds = 10.0
    """`/livez` fails once the event loop has not turned for so long, which is far above what any step on it takes."""

    # --- limits: remote sources; reasons in TimeLimits and RetryLimits ------

    source_connect_seconds: Seconds = _TIME.connect_seconds
    """How long a server may take to accept a connection."""
    source_answer_seconds: Seconds = _TIME.answer_seconds
    """How long it may take from a request to the head of its answer, the TLS handshake included."""
    source_stall_seconds: Seconds = _TIME.stall_seconds
    """Longest silence within an answer."""
    source_bytes_per_second_min: Size = _TIME.bytes_per_second_min
    """What an answer must bring on average."""
    source_retry_seconds: Seconds = _TIME.retry.total_seconds
    """How long a read that fails is tried again, in all."""
    source_attempts_max: Count = _TIME.retry.attempts_max
    """How often it is tried."""
    source_failures_max: Count = _BREAKER.failures_max
    """After so many failures of one server in a row, each with all its tries, its sources fail at once for a while."""
    source_pause_seconds: Seconds = _BREAKER.pause_seconds
    """For how long, before the server is tried again."""

    # --- limits: loads ------------------------------------------------------

    load_threads: Count = 4
    """Bases that load at once from one server, or from this node's files; two threads reach the memory's speed, more
    wait for slow sources."""
    adapter_load_threads: Count = 8
    """Adapters that load at once from one server, or from this node's files, never behind a base."""
    read_threads: Count = 4
    """Parallel reads of one base's load."""
    inspection_bytes_max: Size = 128 << 20
    """Bytes of headers and config that inspections have read at once; the oldest of them never waits."""
    source_read_threads: Count = 8
    """Parallel reads of one load from S3 or a hub, each of some MiB: one alone is as slow as one connection is."""
    reserve_bytes: Size = 512 << 20
    """Memory of the daemon beside the arena: chunks under way, headers being read, the catalog.
    With the budget it must fit into the cgroup's limit."""

    # --- limits: neighbours -------------------------------------------------

    uploads_max: Count = 4
    """Loads of other nodes from this one at once: more would each be slower, and those refused find one that has it
    by then."""
    neighbour_stall_seconds: Seconds = 3.0
    """How long another node may take to be connected to and to answer, beside what its bytes take."""
    neighbour_bytes_per_second_min: Size = 1 << 20
    """What each of the four reads of a load from another node must bring on average, or the source is taken."""
    neighbour_wait_seconds: Seconds = 5.0
    """How long a load waits for a node that is not busy, before it takes the source."""
    neighbour_claim_seconds: Seconds = 10.0
    """How long another node that reads a source may come no further, before a load that waits for it reads the source
    too; some connections to a source are silent for seconds."""

    # --- limits: pushes -----------------------------------------------------

    spool_bytes_max: Size | None = None
    """Bytes that pushed files may take, kept and unfinished. Default: half of what the spool's disk has for them."""
    pushes_max: Count = 64
    """Most unfinished pushes; one that streams has two chunks of memory."""
    push_files_max: Count = 4096
    """Most files of a push; the largest public model has 191 shards."""
    push_chunk_bytes: Size = 512 << 10
    """Most data of one pushed chunk; with its head it is below `message_bytes_max`."""
    push_idle_seconds: Seconds = 3600.0
    """A push that got no byte for so long is dropped: its client has had time for a restart of either side."""
    spool_orphan_seconds: Seconds = 7 * 24 * 3600.0
    """What is kept and no ID means is dropped after so long: a lost registry may be brought back until then."""

    # --- limits: what a source's files may ask for; reasons in FormatLimits --

    format_header_bytes_max: Size = _FORMAT.header_bytes_max
    """Longest header of a file."""
    format_tensor_count_max: Count = _FORMAT.tensor_count_max
    """Most tensors of one artifact."""
    format_element_count_max: Count = _FORMAT.element_count_max
    """Most elements of one tensor."""
    format_rank_max: Count = _FORMAT.rank_max
    """Most dimensions of a tensor."""
    format_name_bytes_max: Size = _FORMAT.name_bytes_max
    """Longest tensor name."""
    format_metadata_bytes_max: Size = _FORMAT.metadata_bytes_max
    """Most bytes of free-form metadata."""
    format_index_bytes_max: Size = _FORMAT.index_bytes_max
    """Longest weights index."""
    format_small_file_bytes_max: Size = _FORMAT.small_file_bytes_max
    """Longest file kept whole beside the tensors."""
    format_small_files_bytes_max: Size = _FORMAT.small_files_bytes_max
    """All of those together."""
    format_box_bytes_max: Size = _FORMAT.box_bytes_max
    """Longest run of encrypted bytes under one MAC; each reading thread holds one, and 4 MiB besides."""
    format_argon2_memory_bytes_max: Size = _FORMAT.argon2_memory_bytes_max
    """Memory for deriving a key from a passphrase, out of the reserve; tensorizer's "sensitive" takes 1GiB."""
    format_argon2_passes_max: Count = _FORMAT.argon2_passes_max
    """Passes over that memory."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is the library's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the call alone: ``parse`` joins the sources, so that errors can name the one at fault."""
        return (init_settings,)

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        if not self.small_chunk_bytes <= self.chunk_bytes <= self.flight_bytes_max:
            raise ValueError("small_chunk_bytes must not be above chunk_bytes, nor that above flight_bytes_max")
        if self.push_chunk_bytes + CHUNK_HEAD_BYTES > self.message_bytes_max:
            raise ValueError(f"push_chunk_bytes must be {CHUNK_HEAD_BYTES} below message_bytes_max")
        if self.registry_username and self.registry_password is None:
            raise ValueError("there is a registry_username and no registry_password")
        if len(set(self.listen)) < len(self.listen):
            raise ValueError("listen has an address twice")
        check_tenants(self.tenant, {row.tenant for row in self.identity} - {None, ANY_TENANT})
        return self

    @model_validator(mode="after")
    def _check_transport(self) -> Settings:
        files = (self.listen_cert_file, self.listen_key_file)
        if any(files) and not all(files):
            raise ValueError("listen_cert_file and listen_key_file go together")
        if not all(files):
            self._check_plain()
            return self
        if self.insecure:
            raise ValueError("insecure is for plain TCP; with listen_cert_file, TCP is TLS")
        if self.neighbours and not self.listen_client_ca_file:
            raise ValueError("over TLS, nodes know each other by certificates: neighbours take listen_client_ca_file")
        kinds = ("subject", "token") if self.listen_client_ca_file else ("token",)
        if not any(getattr(row, kind) is not None for row in self.identity for kind in kinds):
            raise ValueError(f"nobody could call over TLS: there is no [[identity]] with a {' or a '.join(kinds)}")
        return self

    def _check_plain(self) -> None:
        far = [str(listen) for listen in self.listen if not listen.is_local]
        if far and not self.insecure:
            raise ValueError(
                f"{far[0]} is not loopback, and plain TCP there gives everybody who reaches it what anonymous_roles "
                "says: set listen_cert_file and listen_key_file, or --insecure"
            )
        if self.listen_client_ca_file:
            raise ValueError("listen_client_ca_file asks callers for certificates, which takes listen_cert_file")

    def neighbour_security(self) -> Security:
        """Return how other nodes are known and this one to them: as callers are to this one; plain if TCP is."""
        if self.listen_cert_file is None or self.listen_key_file is None:
            return PLAIN
        ca = self.listen_client_ca_file or ""
        return Security(Tls(ca, self.listen_cert_file, self.listen_key_file, self.neighbour_server_name))

    def certificate_files(self) -> CertificateFiles | None:
        """Return what TCP is opened with; None for plain TCP."""
        if self.listen_cert_file is None or self.listen_key_file is None:
            return None
        return CertificateFiles(self.listen_cert_file, self.listen_key_file, self.listen_client_ca_file or "")

    def adapter_floor_bytes(self, budget_bytes: int) -> int:
        """Return what bases must leave to adapters in an arena of this budget."""
        return self.adapter_floor.of(budget_bytes)

    def push_limits(self) -> PushLimits:
        """Return the limits of pushes."""
        return PushLimits(**{field.name: getattr(self, field.name) for field in fields(PushLimits)})

    def format_limits(self) -> FormatLimits:
        """Return the limits of formats."""
        return FormatLimits(**{field.name: getattr(self, f"format_{field.name}") for field in fields(FormatLimits)})
