"""Errors of the database layer: codes DB8xx."""

from __future__ import annotations

from tilecore.errors import TileError


class DatabaseError(TileError):
    """Base of all errors of the database layer."""


class DatabaseAway(DatabaseError):
    """The whole database is of no use just now: whatever is tried next meets this as well."""

    code, title = "DB800", "database-error"
    template = "{url}: {reason}"


class DatabaseLocked(DatabaseAway):
    """Another process holds the database for longer than the busy timeout."""

    code, title = "DB801", "database-locked"
    template = "{url}: expected the lock within {timeout_s:g} s, found another process holding it"
    default_hint = "wait for or stop the other process (a backup, a sqlite3 shell), then try again"


class TransactionUndone(DatabaseLocked):
    """Two transactions waited for each other, and the server undid this one."""

    code, title = "DB832", "transaction-undone"
    template = "{url}: expected to go on after other transactions, found: {reason}"
    default_hint = "nothing of it was kept: send it again"


class SchemaTooNew(DatabaseAway):
    """The database was written by a newer version of this program."""

    code, title = "DB802", "schema-too-new"
    template = "{url}: expected schema revision {expected} or older, found {found}"
    default_hint = (
        "upgrade tilecore, or have the newer one go back to the revision expected here: "
        "`tilecore migrate --down-to REVISION`"
    )


class SchemaTooOld(DatabaseAway):
    """The database must be migrated before this version can use it."""

    code, title = "DB803", "schema-too-old"
    template = "{url}: expected schema revision {expected}, found {found}"
    default_hint = "run `tilecore migrate` (make a backup first)"


class UnknownRevision(DatabaseError):
    """There is no way back to such a schema."""

    code, title = "DB834", "unknown-revision"
    template = "{url}: expected a schema revision from {expected}, found {found}"
    default_hint = "the older version names its own where it refuses the database (DB802)"


class SchemaChanged(DatabaseAway):
    """The schema was changed under a process that runs."""

    code, title = "DB829", "schema-changed"
    template = "{url}: expected the schema that this process began with, found another: {reason}"
    default_hint = "start this version's processes again after `tilecore migrate`; see /readyz"


class DatabaseUnreachable(DatabaseAway):
    """The database cannot be opened or connected to."""

    code, title = "DB804", "database-unreachable"
    template = "{url}: cannot be opened: {reason}"
    default_hint = "check TILECORE_DATABASE_URL and that its folder exists and is writable"


class NotADatabase(DatabaseAway):
    """The file is not an SQLite database, or not one of this program."""

    code, title = "DB805", "not-a-database"
    template = "{url}: expected a tilecore database, found {found}"
    default_hint = "move the file aside or point TILECORE_DATABASE_URL elsewhere"


class LeadershipLost(DatabaseAway):
    """Another coordinator took over; this one may write nothing more."""

    code, title = "DB806", "leadership-lost"
    template = "expected leader epoch {expected}, found {found}: another coordinator has taken over"


class IdempotencyConflict(DatabaseError):
    """An idempotency key came again with another body."""

    code, title = "DB807", "idempotency-conflict"
    template = "idempotency key {key!r} was used before with another request body"
    default_hint = "send a new key for a new request"


class AlreadyMade(DatabaseError):
    """An idempotency key came again with the request that it came with before."""

    code, title = "DB830", "already-made"
    template = "idempotency key {key!r}: expected to come once, found that {what} {made} was made"
    default_hint = (
        "the first answer alone had the secret of an API key; if it was lost, revoke that one and "
        "make another with another Idempotency-Key"
    )


class ValueOutOfRange(DatabaseError):
    """A value that the type of its column cannot hold."""

    code, title = "DB831", "value-out-of-range"
    template = "expected values that the database can hold, found one that it cannot: {reason}"


class BackupFailed(DatabaseError):
    """A database cannot be copied into a file."""

    code, title = "DB833", "backup-failed"
    template = "{path}: {reason}"
    default_hint = "name a file in an existing, writable folder with room for the database"


class NotEmpty(DatabaseError):
    """A database that shall be filled from a file has rows already."""

    code, title = "DB835", "not-empty"
    template = "{url}: expected a database without rows, found some in {found}"
    default_hint = "make a new database, `tilecore migrate`, restore, and start services after that"


class ModelCorrupt(DatabaseError):
    """The bytes of a stored cost model are not those that were saved."""

    code, title = "DB808", "model-corrupt"
    template = "cost model {id}: expected sha256 {expected}, found {found}"
    default_hint = "answers do without it; a new one is trained after the next tuning run"


class UnknownRun(DatabaseError):
    """No tuning run has this id, and no group of them."""

    code, title = "DB809", "unknown-run"
    template = "expected the id of a {what}, found {found!r}"
    default_hint = "list the runs: `tilecore runs` or GET /v1/tuning-runs"


class NotOneSpace(DatabaseError):
    """A file of one space was asked for, and the query matches several spaces, or none."""

    code, title = "DB810", "not-one-space"
    template = "expected measurements of one workload on one device, found {found}"
    default_hint = "narrow the query (kernel, m, n, k, dtype, threads, hardware), or export CSV"


class IllegalTransition(DatabaseError):
    """What is asked for makes no sense in the state in which it is."""

    code, title = "DB811", "illegal-transition"
    template = "{run}: cannot be {verb}, it is {state}"
    default_hint = "docs/rest.md says which state allows what"


class BudgetUsedUp(DatabaseError):
    """An extension that leaves a run nothing to do, or gives it more than a run may have."""

    code, title = "DB812", "budget-used-up"
    template = "run {run}: expected {expected}, found {found}"
    default_hint = "trials and seconds are separate budgets: docs/rest.md, States"


class UnknownNode(DatabaseError):
    """No node of the cluster has this key, or several have keys that begin so."""

    code, title = "DB813", "unknown-node"
    template = "expected the key of a node of the cluster, or how one begins, found {found!r}"
    default_hint = "list them: `tilecore node list` or GET /v1/nodes"


class FormatMissing(DatabaseError):
    """A file of a form was asked for whose package is not installed."""

    code, title = "DB826", "format-missing"
    template = "{form}: expected the package {package}, which is not installed"
    default_hint = "pip install 'tilecore[parquet]' where the service (or this command) runs"


class UnknownModel(DatabaseError):
    """No version of a cost model has this id."""

    code, title = "DB825", "unknown-model"
    template = "expected the id of a cost model, found {found}"
    default_hint = "list them: `tilecore model list` or GET /v1/models"


class UnknownKey(DatabaseError):
    """No API key has this prefix."""

    code, title = "DB820", "unknown-key"
    template = "expected the prefix of an API key, found {found!r}"
    default_hint = "list the keys: `tilecore keys list`"


class UnknownStudy(DatabaseError):
    """No study has this id."""

    code, title = "DB821", "unknown-study"
    template = "expected the id of a study, found {found!r}"
    default_hint = "list the studies: GET /v1/studies"


class StudyClosed(DatabaseError):
    """A study that gives out no more trials."""

    code, title = "DB822", "study-closed"
    template = "expected an open study, found {study}, which was closed"


class UnknownTrial(DatabaseError):
    """A study has no trial with this number."""

    code, title = "DB823", "unknown-trial"
    template = "expected a trial of this study, found {found}"


class LeaseLost(DatabaseError):
    """A worker tells of a trial that it does not hold."""

    code, title = "DB824", "lease-lost"
    template = "trial {trial}: expected to hear from {holder}, heard from {worker}"
    default_hint = "drop the result and ask for the next trial; ask for longer leases (lease_s)"


class AlreadyTold(DatabaseError):
    """A worker tells something else of a trial than what is known."""

    code, title = "DB828", "already-told"
    template = "trial {trial}: expected what is known of it ({known}), or nothing, found another"
    default_hint = "drop the result and ask for the next trial; ask for longer leases (lease_s)"


class UnknownProgram(DatabaseError):
    """No program with this digest was stored."""

    code, title = "DB827", "unknown-program"
    template = "expected the digest of a stored program, found {found!r}"
    default_hint = "send the program first: POST /v1/programs"
