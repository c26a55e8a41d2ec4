"""Every error kvsize raises on purpose, with its code and its exit code.

    KvsizeError                         exit
    ├── UsageError                        2   a flag or value that means nothing
    ├── SourceError                       3   not found, access denied, unreachable, not JSON
    ├── ConfigError                       4   a field is missing, invalid or conflicting
    │   └── UnknownArchitectureError      4   kvsize does not know this model_type and does not guess
    ├── UnsupportedError                  5   the engine refuses this model or setting
    └── MissingRequirementError           6   torch, a GPU, a driver: the message holds the install line

Exit 0 means done (or yes), 1 means the answer is no, 70 means a bug in kvsize.
"""

from __future__ import annotations


class KvsizeError(Exception):
    """Base of the tree: what went wrong, where, what was found, and what to do next."""

    exit_code = 70
    code = "error"

    def __init__(self, what: str, *, where: str | None = None, got: str | None = None, hint: str | None = None):
        super().__init__(what)
        self.what = what
        self.where = where
        self.got = got
        self.hint = hint

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        if self.got is not None:
            line += f" (got {self.got})"
        return f"{line}\n{self.hint}" if self.hint else line


class UsageError(KvsizeError):
    """A flag, value or combination that means nothing."""

    exit_code = 2
    code = "usage"


class SourceError(KvsizeError):
    """The model's config could not be read from where it was named.

    `reason` is one of: not_found, gated, unauthorized, unreachable, timeout, rate_limited, server,
    not_json, too_large, offline, broken.
    """

    exit_code = 3
    code = "source"

    def __init__(
        self, what: str, *, reason: str, where: str | None = None, got: str | None = None, hint: str | None = None
    ):
        super().__init__(what, where=where, got=got, hint=hint)
        self.reason = reason


class ConfigError(KvsizeError):
    """A field of the config is missing, invalid, or contradicts another one."""

    exit_code = 4
    code = "config"


class UnknownArchitectureError(ConfigError):
    """kvsize has no rule for this model_type, and does not guess."""

    code = "unknown_architecture"


class UnsupportedError(KvsizeError):
    """The engine itself refuses this model or this setting."""

    exit_code = 5
    code = "unsupported"


class MissingRequirementError(KvsizeError):
    """The environment lacks something: torch, a GPU, a driver. The hint holds the install line."""

    exit_code = 6
    code = "missing_requirement"
