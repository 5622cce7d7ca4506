"""Cluster shapes W*G+P: workers * devices of each + parameter servers, such as 2*1+1 or 1*4."""

import re
from dataclasses import dataclass

from tf_cnn.managers.modes import Mode, Topology

_SHAPE = re.compile(r'\s*([0-9]{1,6})\s*\*\s*([0-9]{1,6})\s*(?:\+\s*([0-9]{1,6})\s*)?', re.ASCII)
EXPECTED = 'W*G or W*G+P: workers, devices of each, parameter servers, such as 1*2 or 2*1+1'


@dataclass(frozen=True)
class Shape:
    workers: int
    devices: int
    num_ps: int = 0

    @classmethod
    def parse(cls, text: str) -> 'Shape':
        """Parses '2*1+1' or '1*2'; raises ValueError if the text is not a shape."""
        match = _SHAPE.fullmatch(text)
        if not match:
            raise ValueError(f'it must be {EXPECTED}')
        shape = cls(*(int(number or 0) for number in match.groups()))
        if not shape.workers or not shape.devices:
            raise ValueError('it needs at least one worker with one device, as in 1*1')
        return shape

    def __str__(self) -> str:
        return f'{self.workers}*{self.devices}' + (f'+{self.num_ps}' if self.num_ps else '')

    def topology(self, mode: Mode) -> Topology:
        if self.num_ps:
            return Topology.PARAMETER_SERVERS
        if mode.has_controller:
            return Topology.CONTROLLER
        return Topology.PEERS if self.workers > 1 else Topology.LOCAL

    def unsupported_reason(self, mode: Mode) -> str | None:
        """Returns why the mode cannot run in this shape; None if it can."""
        if mode.launcher:
            return f'{mode.launcher} starts the processes of {mode.name}, which a sweep cannot'
        topology = self.topology(mode)
        if mode.runs_in(topology):
            return None
        if topology is not Topology.LOCAL and not mode.has_cluster:
            return f'{mode.name} works within one process'
        if topology is Topology.PARAMETER_SERVERS:
            return f'{mode.name} has no parameter servers'
        return f'{mode.name} needs parameter servers'
