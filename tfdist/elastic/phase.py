"""The phases of a process's part in an elastic job, and the transitions between them.

    NEWCOMER --received the members' state, or formed the job again--> MEMBER
       \\--stops before it has joined--------------------------------> STOPPING
    MEMBER --leaves after the step, by its notice--------------------> LEAVING
       |--all members end after the step-----------------------------> ENDING
       \\--the others have continued without it------------------------> NEWCOMER
    LEAVING --all members end after the step-------------------------> ENDING
       \\--the others have continued without it------------------------> NEWCOMER
    ENDING --the others have continued without it----------------------> STOPPING
    STOPPING --joined in spite of it---------------------------------> ENDING

In NEWCOMER and STOPPING the process is alone; in the other phases it is one of the members. A
process that is in LEAVING and falls behind still has its notice, and tells it in its next step.

A change of the members is planned apart from that: all form the next generation together, also
members that leave after the step.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Phase(enum.Enum):
    """The part of this process in the job; the module's drawing has the transitions."""

    NEWCOMER = enum.auto()
    STOPPING = enum.auto()
    MEMBER = enum.auto()
    LEAVING = enum.auto()
    ENDING = enum.auto()


PHASE_TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.NEWCOMER: frozenset({Phase.MEMBER, Phase.STOPPING}),
    Phase.STOPPING: frozenset({Phase.ENDING}),
    Phase.MEMBER: frozenset({Phase.LEAVING, Phase.ENDING, Phase.NEWCOMER}),
    Phase.LEAVING: frozenset({Phase.ENDING, Phase.NEWCOMER}),
    Phase.ENDING: frozenset({Phase.STOPPING}),
}


class PlannedChange(enum.Enum):
    """When all members form the next generation, if no member is lost before."""

    NONE = enum.auto()
    # Before a unit of work that admits newcomers.
    ADMISSION = enum.auto()
    # Before a unit that admits newcomers or lets a member leave.
    DEPARTURE = enum.auto()
