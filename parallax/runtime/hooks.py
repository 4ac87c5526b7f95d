"""Lets the user's session hooks name tensors of the user's graph, while they run on the worker's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf


class UserHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """One of the user's hooks: what it asks for by tensors of the user's graph is fetched from the worker's graph."""

    def __init__(self, hook: Any, user_graph: Any, whole: Mapping[str, str]) -> None:
        self._hook = hook
        self._user_graph = user_graph
        self._whole = whole

    def begin(self) -> None:
        """Called before the worker's graph is finished."""
        self._hook.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Called when the session is there."""
        self._hook.after_create_session(session, coord)

    def before_run(self, run_context: Any) -> Any:
        """Passes the hook's wishes on, in the worker's names."""
        wishes = self._hook.before_run(run_context)
        if wishes is None:
            return None
        feeds = {self._translated(k): v for k, v in (wishes.feed_dict or {}).items()} or None
        fetches = tf.nest.map_structure(self._translated, wishes.fetches) if wishes.fetches is not None else None
        return tf.compat.v1.train.SessionRunArgs(fetches, feeds, wishes.options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Gives the hook its values."""
        self._hook.after_run(run_context, run_values)

    def end(self, session: Any) -> None:
        """Called when the session ends well."""
        self._hook.end(session)

    def _translated(self, thing: Any) -> Any:
        """A tensor of the user's graph by its name on the worker's; anything else as it is."""
        graph = getattr(thing, "graph", None)
        return self._whole.get(thing.name, thing.name) if graph is self._user_graph else thing
