"""The parts of the daemon that follow from its settings alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from warmshelf.errors import InvalidConfig
from warmshelfd import __version__
from warmshelfd.claims import ClaimRules, Claims
from warmshelfd.credentials import Credentials
from warmshelfd.decrypting import Keys
from warmshelfd.domain.catalog import Catalog
from warmshelfd.domain.leases import LeaseTable
from warmshelfd.inspecting import Sources
from warmshelfd.listening import Transport
from warmshelfd.memory.arena import Arena
from warmshelfd.metrics import Metrics
from warmshelfd.neighbours import NeighbourRules, Neighbours
from warmshelfd.opening import openers
from warmshelfd.pools import LoadThreads
from warmshelfd.registry.base import Registry
from warmshelfd.registry.open import open_claims, open_registry, open_residents
from warmshelfd.residency_map import ResidencyMap
from warmshelfd.servicers.admission import Admission
from warmshelfd.servicers.flight import FlightBudget
from warmshelfd.settings import Settings
from warmshelfd.sources.breaker import BreakerLimits
from warmshelfd.sources.neighbour import Patience
from warmshelfd.sources.settings import read_secret
from warmshelfd.this_node import this_node
from warmshelfd.tracing import NO_TRACING, Tracing


def sources_of(settings: Settings) -> Sources:
    """Return what opens sources."""
    return Sources(
        openers(settings),
        settings.format_limits(),
        Keys(settings.source),
        settings.inspection_bytes_max,
        BreakerLimits(settings.source_failures_max, settings.source_pause_seconds),
    )


def metrics_of(schemes: Sequence[str], arena: Arena) -> Metrics:
    """Return the metrics, which say what the arena is like."""
    metrics = Metrics(schemes)
    metrics.describe(
        __version__, pinning=arena.pinning, page_size_bytes=arena.page_size_bytes, budget_bytes=arena.budget_bytes
    )
    return metrics


def tracing_of(endpoint: str) -> Tracing:
    """Return what makes spans; its libraries take a third of a second to import, and come with an extra."""
    if not endpoint:
        return NO_TRACING
    try:
        from warmshelfd.otel import open_tracing  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("opentelemetry"):
            raise
        raise InvalidConfig("trace_endpoint needs: pip install 'warmshelf[otel]'", option="trace_endpoint") from error
    return open_tracing(endpoint)


def registry_of(settings: Settings, tenant: str, metrics: Metrics) -> Registry:
    """Open the registry; errors as ``open_registry``."""
    return open_registry(
        settings.registry,
        copy_path=settings.registry_copy,
        credentials=partial(registry_credentials, settings),
        ca_file=settings.registry_ca_file,
        tenant=tenant,
        count=metrics.fleet_failed,
    )


def residency_map_of(settings: Settings, tenant: str, catalog: Catalog, metrics: Metrics) -> ResidencyMap:
    """Return what tells other nodes what is resident here."""
    credentials = partial(registry_credentials, settings)
    ca_file = settings.registry_ca_file
    store = open_residents(settings.registry, credentials=credentials, ca_file=ca_file, tenant=tenant)
    return ResidencyMap(catalog, store, this_node(settings), metrics)


def registry_credentials(settings: Settings) -> tuple[str, bytes]:
    """Return user and password as they are now: a changed file counts from the next connection on."""
    return settings.registry_username, read_secret(settings.registry_password) if settings.registry_password else b""


def admission_of(settings: Settings, credentials: Credentials, tenants: Collection[str] = ()) -> Admission:
    """Return who is let in."""
    has_tls = credentials.certificates is not None
    return Admission(credentials.identities, settings.anonymous_roles, has_tls=has_tls, tenants=tenants)


def load_threads_of(settings: Settings) -> LoadThreads:
    """Return how many threads load."""
    return LoadThreads(
        bases=settings.load_threads,
        adapters=settings.adapter_load_threads,
        inspections=settings.adapter_load_threads,
        reads=settings.read_threads,
    )


def neighbours_of(settings: Settings, tenant: str, residency_map: ResidencyMap, metrics: Metrics) -> Neighbours:
    """Return the nodes that loads may be taken from."""
    patience = Patience(settings.neighbour_stall_seconds, settings.neighbour_bytes_per_second_min)
    security, node = replace(settings.neighbour_security(), tenant=tenant), residency_map.node
    wait_seconds = settings.neighbour_wait_seconds
    rules = NeighbourRules(settings.neighbours, patience, wait_seconds, node.name, node.zone, security)
    return Neighbours(rules, settings.format_limits(), residency_map.holders, metrics)


def claims_of(
    settings: Settings, tenant: str, residency_map: ResidencyMap, neighbours: Neighbours, metrics: Metrics
) -> Claims:
    """Return who says which sources are read here, and looks what others read."""
    credentials = partial(registry_credentials, settings)
    ca_file = settings.registry_ca_file
    store = open_claims(settings.registry, credentials=credentials, ca_file=ca_file, tenant=tenant)
    life_seconds, rate = settings.neighbour_claim_seconds, settings.neighbour_bytes_per_second_min
    return Claims(store, lambda: residency_map.node, ClaimRules(life_seconds, rate, neighbours.may_take), metrics)


def lease_table_of(settings: Settings) -> LeaseTable:
    """Return an empty table of leases with its limits."""
    return LeaseTable(
        sessions_max=settings.sessions_max,
        leases_max=settings.leases_max,
        leases_per_session_max=settings.leases_per_session_max,
    )


def flight_of(settings: Settings) -> FlightBudget:
    """Return the budget of bytes on their way."""
    return FlightBudget(
        bytes_max=settings.flight_bytes_max,
        chunk_bytes=settings.chunk_bytes,
        small_chunk_bytes=settings.small_chunk_bytes,
        streams_max=settings.streams_max,
        streams_per_session_max=settings.streams_per_session_max,
    )


def transport_of(settings: Settings) -> Transport:
    """Return how the servers speak."""
    return Transport(
        message_bytes_max=settings.message_bytes_max,
        call_metadata_bytes_max=settings.call_metadata_bytes_max,
        calls_per_connection_max=settings.calls_per_connection_max,
        keepalive_seconds=settings.keepalive_seconds,
        keepalive_timeout_seconds=settings.keepalive_timeout_seconds,
    )
