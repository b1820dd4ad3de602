"""The log, and whoever else observes the work: an error of theirs never reaches it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django import dispatch

from django_idempotency.callables import name_of

if TYPE_CHECKING:
    _LoggerAdapter = logging.LoggerAdapter[logging.Logger]
else:
    _LoggerAdapter = logging.LoggerAdapter

#: An error of an observer is told anew after so many seconds without it.
_QUIET = 600
#: When each kind of error was last seen, by the observer and the class.
_seen: dict[tuple[str, type], float] = {}


class Log(_LoggerAdapter):
    """
    A logger whose handlers, filters and formatters may raise.

    Such an error goes to the standard error stream, as `logging` sends those of its own handlers:
    ``logging.raiseExceptions = False`` turns that off.
    """

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """See `logging.Logger.log`; the line's place in the code is the caller's."""
        try:
            self.logger.log(level, msg, *args, **{"stacklevel": 2, **kwargs})
        except Exception as error:
            if _is_news("the log", error):
                failed = logging.LogRecord(self.logger.name, level, "", 0, msg, args, None)
                with suppress(Exception):  # the stream may be closed: there is no other place
                    logging.Handler().handleError(failed)


#: The log of this package.
logger = Log(logging.getLogger("django_idempotency"), {})


class Signal(dispatch.Signal):
    """A signal about the work, whose receivers may raise."""

    def send_robust(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        """See Django's; an error of its own, as about an event loop, is one of its receivers'."""
        try:
            return super().send_robust(sender, **named)
        except Exception as error:
            _tell("the receivers of a signal", error)
            return []

    def _log_robust_failure(self, receiver: Any, err: Exception) -> None:
        """Log an error of a receiver once; Django's own would log each of them."""
        _tell(f"the receiver {name_of(receiver)}", err)


def observe(observer: Callable[..., Any], *args: Any) -> None:
    """Call an instrument; what it raises is logged."""
    try:
        observer(*args)
    except Exception as error:
        _tell(f"the instrument {name_of(observer)}", error)


def _tell(observer: str, error: Exception) -> None:
    if _is_news(observer, error):
        logger.error("An error of %s: the work goes on without it.", observer, exc_info=error)


def _is_news(observer: str, error: Exception) -> bool:
    """Whether this kind of error was not seen lately: a request may raise it many times."""
    kind, now = (observer, type(error)), time.monotonic()
    last, _seen[kind] = _seen.get(kind), now
    return last is None or now - last > _QUIET
