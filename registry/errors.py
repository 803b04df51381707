"""What can go wrong, split by who must act: the developer, the provider's side, the operator.

The class docstring's first line is the default message; `code` is stable and part of the public JSON.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DagwrightError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str = "") -> None:
        doc = (type(self).__doc__ or "").strip().partition("\n")[0]
        super().__init__(message or doc)


class UsageError(DagwrightError):
    """The library was called in a way it does not allow."""

    code = "usage"


class NotBuiltError(UsageError):
    """This part is not built yet."""

    code = "not_built"


class ConfigError(DagwrightError):
    """The configuration is wrong or incomplete."""

    code = "configuration"


class NoModelError(ConfigError):
    """There is no model to call."""

    code = "no_model"


class UnknownModelError(UsageError, KeyError):
    """No model has this name or role."""

    code = "unknown_model"

    def __str__(self) -> str:  # KeyError would show the text as a repr
        return str(self.args[0]) if self.args else ""


class LLMError(DagwrightError):
    """The provider answered with an error.

    `retryable`: the same request may succeed later. `retry_after`: seconds the provider asked to wait, or None.
    `status`: HTTP status or None. `usage`: what the failed attempt cost, where the provider said so.
    `param`: the parameter that was refused, where the provider named one.
    """

    code = "provider_error"
    retryable_by_default: ClassVar[bool] = False

    def __init__(
        self,
        message: str = "",
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
        status: int | None = None,
        usage: Any = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = self.retryable_by_default if retryable is None else retryable
        self.retry_after = retry_after
        self.status = status
        self.usage = usage
        self.param = param


class ProviderError(LLMError):
    """The provider failed."""

    retryable_by_default = True


class RateLimitError(LLMError):
    """Too many requests or tokens for now."""

    code = "rate_limit"
    retryable_by_default = True


class OverloadedError(LLMError):
    """The provider is overloaded."""

    code = "overloaded"
    retryable_by_default = True


class LLMConnectionError(LLMError):
    """The connection to the provider failed or broke off."""

    code = "connection"
    retryable_by_default = True


class LLMTimeoutError(LLMError):
    """The provider did not answer in time."""

    code = "timeout"
    retryable_by_default = True


class AuthError(LLMError):
    """The provider refused the key."""

    code = "auth"


class QuotaError(LLMError):
    """The account's quota or credit is used up; waiting does not help."""

    code = "quota"


class RefusalError(LLMError):
    """The model refused."""

    code = "refusal"


class ContentFilterError(LLMError):
    """The provider's content filter blocked the answer."""

    code = "content_filter"


class ContextLengthError(LLMError):
    """The conversation is longer than the model's context. `context_size`: tokens, where the provider said so."""

    code = "context_length"

    def __init__(self, message: str = "", *, context_size: int | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.context_size = context_size


class TruncatedError(LLMError):
    """The output limit cut the reply."""

    code = "truncated"


class BadRequestError(LLMError):
    """The provider refused the request."""

    code = "bad_request"


class AbandonedError(LLMError):
    """The call was cancelled on its way; whether it cost anything is unknown."""

    code = "cancelled"


class BudgetExceededError(LLMError):
    """The call does not fit into the job's budget; it was not made."""

    code = "budget_exceeded"
