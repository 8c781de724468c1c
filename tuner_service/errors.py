"""Errors of the service and the command line: codes SV9xx, and the HTTP status of every error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from db.errors import (
    AlreadyMade,
    AlreadyTold,
    BudgetUsedUp,
    DatabaseError,
    FormatMissing,
    IdempotencyConflict,
    IllegalTransition,
    LeaseLost,
    NotOneSpace,
    StudyClosed,
    UnknownKey,
    UnknownModel,
    UnknownNode,
    UnknownProgram,
    UnknownRun,
    UnknownStudy,
    UnknownTrial,
    ValueOutOfRange,
)
from recommender.errors import UnknownHardware
from tilecore.errors import (
    CompileFailed,
    InvalidProblem,
    TileError,
    ToolchainMissing,
    UnknownKernel,
)
from workers.errors import DeviceMissing, InvalidPack, ProgramTooCostly, WorkerError


class ServiceError(TileError):
    """Base of all errors of the service; ``status`` is the HTTP status."""

    code, title = "SV900", "service-error"
    status = 500


class InvalidRequest(ServiceError):
    """The request does not have the documented form."""

    code, title, status = "SV901", "invalid-request", 422
    template = "{message}"


class NotFound(ServiceError):
    """No such resource."""

    code, title, status = "SV902", "not-found", 404
    template = "{path} does not exist"
    default_hint = "see /docs for what does"


class MethodNotAllowed(ServiceError):
    """The resource does not take this method."""

    code, title, status = "SV903", "method-not-allowed", 405
    template = "{method} is not possible on {path}"
    default_hint = "the header `Allow` has the methods that are; see /docs"


class BodyTooLarge(ServiceError):
    """The request body is longer than the limit."""

    code, title, status = "SV904", "body-too-large", 413
    template = "expected a body of at most {limit} bytes, found {found}"
    default_hint = (
        "send it in parts; an operator sets the limit (TILECORE_MAX_BODY_BYTES and others)"
    )


class InternalError(ServiceError):
    """A fault of ours; the log has the details under the request id."""

    code, title, status = "SV905", "internal-error", 500
    template = "an unexpected error occurred (request {request_id})"
    default_hint = "look for the request id in the log of the service and report it"


class HardwareNotOffered(ServiceError):
    """No worker measures on the hardware that was asked for."""

    code, title, status = "SV906", "hardware-not-offered", 422
    template = "expected hardware that a worker here offers ({offered}), found {found}"
    default_hint = (
        "a recommendation works for any known hardware; tuning needs the device: start `tilecore "
        "worker` where it is, queue the run until somebody does (`--wait`, `wait_for_hardware`), "
        "or take candidates there (`tilecore pack`)"
    )


class TooManyThreads(ServiceError):
    """More threads than the device has cores."""

    code, title, status = "SV907", "too-many-threads", 422
    template = "threads: expected 0 (all) to {cores} on {hardware}, found {found}"
    default_hint = "leave threads out: all cores are used"


class InvalidCursor(ServiceError):
    """A page cursor that this service did not make for this query."""

    code, title, status = "SV908", "invalid-cursor", 422
    template = "cursor: expected one from `next_cursor` of the same query, found {found!r}"
    default_hint = "begin again without a cursor, and keep the filters from page to page"


class CoordinatorStopped(ServiceError):
    """The coordinator process ended before the run did."""

    code, title = "SV909", "coordinator-stopped"
    template = "the coordinator ended with exit status {status} before the run was finished"
    default_hint = "run the same command again: it goes on where it stopped"


class InvalidSettings(ServiceError):
    """A TILECORE_ environment variable has a value that cannot be used."""

    code, title, status = "SV910", "invalid-settings", 422
    template = "{message}"
    default_hint = "correct or unset it: each setting has a default (tuner_service/settings.py)"


class RunFailed(ServiceError):
    """A tuning run ended without a result."""

    code, title, status = "SV911", "run-failed", 409
    template = "tuning run {run} ended as {state}: {error}"
    default_hint = (
        "what it had found stays: `tilecore run show ID`, or GET /v1/tuning-runs/ID/trials"
    )


class InvalidProgramFile(ServiceError):
    """The command line names a program that is not there, or cannot be imported."""

    code, title, status = "SV913", "invalid-program-file", 422
    template = "{program}: expected {expected}, found {found}"


class ExportFailed(ServiceError):
    """A file cannot be written."""

    code, title, status = "SV914", "export-failed", 422
    template = "{path}: cannot be written: {reason}"
    default_hint = (
        "name a file in an existing, writable folder: FILE.csv, FILE.parquet or FILE.t4.json"
    )


class InvalidWorkloads(ServiceError):
    """A file of workloads cannot be used; every faulty line is told."""

    code, title, status = "SV915", "invalid-workloads", 422
    template = "{path}: {faults}"
    default_hint = "a line `gemm m=1000 n=1024 k=512`, a CSV with such columns, or a JSON list"


class RunHeld(ServiceError):
    """The run that a command waits for is paused, or nobody offers its hardware."""

    code, title = "SV916", "run-held"
    template = "tuning run {run} is {state}{why}"
    default_hint = "`tilecore run resume ID`, then the same command again"


class CannotListen(ServiceError):
    """The service cannot have the address that it is to listen on."""

    code, title, status = "SV933", "cannot-listen", 422
    template = "expected a free address of this machine to listen on, found {host}:{port}: {reason}"
    default_hint = "`tilecore serve --host HOST --port PORT`; perhaps one is running there already"


class TooLargeToEmulate(ServiceError):
    """The emulator would work on the problem for minutes per candidate."""

    code, title, status = "SV930", "too-large-to-emulate", 422
    template = "expected at most {limit:.0e} FLOP on the {hardware}, found {found:.1e}"
    default_hint = "take a smaller problem: what the emulator finds does not depend on the size"


class TooLargeToMeasure(ServiceError):
    """No process that measures candidates has room for the tensors."""

    code, title, status = "SV932", "too-large-to-measure", 422
    template = (
        "expected tensors that a candidate has room for on {where}, {limit}, found {found}: each "
        "tensor is there twice, to be compared"
    )
    default_hint = (
        "take a smaller problem: a candidate gets half of the memory where it is measured, 32 GiB "
        "at most"
    )


class Unauthenticated(ServiceError):
    """The request bears no key, or one that is not (or no longer) valid."""

    code, title, status = "SV920", "unauthenticated", 401
    template = "expected the header `Authorization: Bearer KEY` with a valid API key, found {found}"
    default_hint = "an operator makes keys: `tilecore keys create NAME --role read`"


class Forbidden(ServiceError):
    """The key's role does not reach that far."""

    code, title, status = "SV921", "forbidden", 403
    template = "expected a key with the role {expected}, found {found}"
    default_hint = "an operator makes keys: `tilecore keys create NAME --role read|tune|admin`"


class RateLimited(ServiceError):
    """A key was used more often than it may."""

    code, title, status = "SV922", "rate-limited", 429
    retry_after_s = 1
    template = "expected at most {limit} with one key, found more"
    default_hint = "wait for `Retry-After` seconds; batches ask several questions in one request"


class TooManyWrongKeys(ServiceError):
    """A client has tried more keys that nobody has than it may."""

    code, title, status = "SV926", "too-many-wrong-keys", 429
    retry_after_s = 1
    template = "expected at most {limit} unknown API keys from one address, found more"
    default_hint = (
        "wait for `Retry-After` seconds and send a key as `tilecore keys create` shows it"
    )


class Overloaded(ServiceError):
    """More requests wait than the service takes."""

    code, title, status = "SV923", "overloaded", 503
    template = "expected at most {limit} requests at work, found more"
    default_hint = "try again after `Retry-After` seconds"


class TooManyStreams(ServiceError):
    """More clients follow runs than the service serves at once."""

    code, title, status = "SV935", "too-many-streams", 503
    template = "expected at most {limit} open streams of events, found as many"
    default_hint = "ask for the run itself now and then (GET /v1/tuning-runs/ID), or try later"


class ModelsBusy(ServiceError):
    """A cost model comes while another one is looked at."""

    code, title, status = "SV924", "models-busy", 503
    template = "expected one cost model at a time, found another one being looked at"
    default_hint = "try again after `Retry-After` seconds"


class AnswerLost(ServiceError):
    """The process that worked out an answer ended over it, or took too long."""

    code, title, status = "SV925", "answer-lost", 503
    template = "expected an answer, found that the process working it out ended: {reason}"
    default_hint = "try again after `Retry-After` seconds; if it stays so, the log has the question"


class ServiceUnreachable(ServiceError):
    """The service that a client asks does not answer, or answers something else."""

    code, title = "SV917", "service-unreachable"
    template = "expected a tilecore service at {url}, found {found}"
    default_hint = "start one with `tilecore serve`, or leave out --service"


class NoServiceAddress(ServiceUnreachable):
    """The address of a service that a client is given is none."""

    code, title, status = "SV936", "no-service-address", 422
    template = "expected the address of a service (http://HOST:8711), found {found!r}"
    default_hint = (
        "it begins with http:// or https:// and is given by --service, `service=` or "
        "TILECORE_SERVICE_URL"
    )


class Refused(ServiceError):
    """The service that a client asks refused the request; its own code and reason are told."""

    code, title, status = "SV918", "refused-by-service", 422
    template = "{url} answered {code}: {detail}"


class NoServiceResult(ServiceError):
    """A run that ``@autotune`` queued at a service ended without a result, or not in time."""

    code, title = "SV931", "no-service-result"
    template = "expected a result of run {run} at {url}, found it {state}: {reason}"
    default_hint = "look at the run there; TILECORE_SERVICE_TIMEOUT_S is how long to wait"


class StudyOfAnotherVersion(ServiceError):
    """A study of a library kernel was made when the kernel had other candidates."""

    code, title, status = "SV934", "study-of-another-version", 409
    template = (
        "expected the candidates of {kernel} of when the study was made ({expected}), found {found}"
    )
    default_hint = "make a new study: what this one was told stays readable"


class NothingMeasured(ServiceError):
    """None of the configurations that a study tried has a time."""

    code, title = "SV937", "nothing-measured"
    template = (
        "expected a time of a configuration of {name}, found {count} without one; last: {last}"
    )
    default_hint = "what `measure` raised, or returned, for each is kept with the study's trials"


class RequestTooSlow(ServiceError):
    """The header or the body of a request did not come in time, or not wholly."""

    code, title, status = "SV938", "request-too-slow", 408
    template = "expected the whole {what} of the request within {limit_s:g} s"
    default_hint = (
        "send it faster, or in parts; an operator sets the time (TILECORE_BODY_TIMEOUT_S, "
        "TILECORE_HEADER_TIMEOUT_S)"
    )


class ServiceStopping(ServiceError):
    """The service stops: it takes no new requests, and ends those that take too long."""

    code, title, status = "SV939", "service-stopping", 503
    template = "expected an answer, found that the service stops"
    default_hint = "try again after `Retry-After` seconds, with the same Idempotency-Key"


class OtherSite(ServiceError):
    """A request that a page of another site may have had a browser send."""

    code, title, status = "SV940", "other-site", 403
    template = "expected {expected}, found {found}"
    default_hint = (
        "programs send no `Origin` and ask by the address that the service listens on; with "
        "TILECORE_AUTH=required whoever has a key is let in, by any name"
    )


class FaultyParts(Exception):
    """Several questions came in one request, and some of them cannot be used.

    Args:
        parts: what was wrong, by the pointer of the part; the answer bears the code of the first.
    """

    def __init__(self, parts: Sequence[tuple[str, TileError]]) -> None:
        self.parts = parts
        super().__init__("; ".join(f"{where}: {error.message}" for where, error in parts))


UNKNOWN = (
    UnknownKernel, UnknownHardware, UnknownRun, UnknownNode, UnknownKey, UnknownStudy, UnknownTrial,
    UnknownModel, UnknownProgram,
)  # fmt: skip
UNFIT = (
    InvalidProblem, IdempotencyConflict, NotOneSpace, FormatMissing, ProgramTooCostly,
    ValueOutOfRange,
)  # fmt: skip
CONFLICTS = (AlreadyMade, IllegalTransition, BudgetUsedUp, StudyClosed, LeaseLost, AlreadyTold)


def http_status(error: TileError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, ServiceError):
        return error.status
    if isinstance(error, UNKNOWN):
        return 404
    if isinstance(error, CONFLICTS):
        return 409
    if isinstance(error, UNFIT):
        return 422
    if isinstance(error, (DatabaseError, CompileFailed, ToolchainMissing, WorkerError)):
        return 503
    return 422 if error.code.startswith(("TC", "RC")) else 500


def exit_status(error: TileError) -> int:
    """Return the exit status of a command that an error ends: 2 for a fault of its user."""
    if isinstance(error, InvalidPack | DeviceMissing):
        return 2
    is_ours = isinstance(error, ServiceError) and error.status >= 500
    return 1 if error.code.startswith("WK") or is_ours else 2


def is_of_request(found: object) -> TypeGuard[TileError]:
    """Return whether something is an error that the sender of a request has made."""
    return isinstance(found, TileError) and http_status(found) < 500
