"""Faults in the measures."""

from __future__ import annotations

from mutations.mutation import Mutation

MUTATIONS: list[Mutation] = []
