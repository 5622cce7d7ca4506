"""Measured links: how fast gradients meet, and the file that keeps it. docs/predict.md describes the file."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from errors import UsageError, alternatives, read_regular, spelled
from hardware.atomic import write_whole
from models.gradients import GradientFacts
from scaling.fitting import Measured, Prior, usual
from scaling.terms import LARGEST_WHOLE_VALUES, Exchange, ModelledCluster, Work

# The value of "schema" in the file.
LINKS = 'tf_cnn_benchmarks.links'
SCHEMA_VERSION = 1
# More rows make a fit slow and tell it nothing new.
MOST_ROWS = 1000
_MOST_BYTES = 16 << 20
# How gradients meet, by the names of the file; each has links of its own, such as messages and shared memory.
EXCHANGES: Mapping[str, Exchange] = {
    'ring': Exchange.RING,
    'copies': Exchange.RING,
    'hierarchical': Exchange.RING,
    'nccl': Exchange.RING,
    'collective': Exchange.RING,
    'controller': Exchange.RING,
    'shared_memory': Exchange.RING,
    'parameter_servers': Exchange.SERVERS,
}
DTYPE_BYTES: Mapping[str, int] = {'float32': 4, 'float16': 2, 'bfloat16': 2}
# What tables call parameter servers on which every variable is whole.
WHOLE = 'parameter_servers_whole'
# The prefixes of the units of a data sheet.
_PREFIXES = {'': 1.0, 'k': 1e3, 'm': 1e6, 'g': 1e9, 't': 1e12}
_NETWORK = re.compile(r'(\d+(?:\.\d+)?)\s*([kmgt]?)(?:bit(?:/s)?|bps)', re.IGNORECASE)
# TCP over Ethernet carries 1448 bytes of each 1538 on the wire (RFC 894, RFC 793, 12 bytes of timestamps; 38 bytes of
# preamble, header, checksum and gap). How much of it software uses is not in a data sheet.
_PAYLOAD, _SPREAD_OF_SHEET = 1448 / 1538, 0.3
_SPREAD_OF_LATENCY = 0.2


@dataclass(frozen=True)
class LinkRow:
    """One measured exchange: every worker brings gradients and has their sum afterwards.

    Attributes:
      exchange: how they met, one of EXCHANGES.
      dtype: the type of the values on their way, one of DTYPE_BYTES.
      hosts: the number of hosts.
      workers: the number of processes.
      devices: the number of devices of each process.
      servers: the number of parameter servers, 0 without.
      bytes: the bytes of one device's gradients.
      tensors: how many tensors these are.
      largest: the bytes of the largest tensor.
      seconds: the median seconds of an exchange.
      model: the model whose gradients these are; None for tensors of a chosen size.
      slices: whether large tensors were cut into one part for each parameter server.
      server_hosts: how many of the hosts had parameter servers and no workers.
    """

    exchange: str
    dtype: str
    hosts: int
    workers: int
    devices: int
    servers: int
    bytes: int
    tensors: int
    largest: int
    seconds: float
    model: str | None = None
    slices: bool = True
    server_hosts: int = 0

    @property
    def is_exchange(self) -> bool:
        """Whether gradients met, or crossed a link; those of one device on the host of its server did neither."""
        return self.workers * self.devices > 1 or self.hosts > 1

    @property
    def name(self) -> str:
        """What tables call the exchange."""
        return self.exchange if self.slices else WHOLE

    @property
    def is_cut(self) -> bool:
        """Whether slices makes a difference: there are several servers, and a tensor that is cut for them."""
        return self.servers > 1 and self.largest > LARGEST_WHOLE_VALUES * DTYPE_BYTES[self.dtype]

    @property
    def measured(self) -> Measured:
        """The row as a measurement for scaling.fitting.Fit."""
        width = DTYPE_BYTES[self.dtype]
        values = max(1, self.bytes // width)
        gradients = GradientFacts(self.tensors, max(1, self.largest // width), ((values, 0.0),))
        cluster = ModelledCluster(
            EXCHANGES[self.exchange],
            self.workers,
            self.hosts,
            self.devices,
            self.servers,
            label=self.exchange,
            sums_on_host=True,
            server_hosts=self.server_hosts,
        )
        work = Work('', gradients, 1, width, slices=self.slices)
        return Measured(work, cluster, self.seconds, is_exchange=True)


@dataclass(frozen=True)
class Links:
    """Links that were measured.

    Attributes:
      rows: the measured exchanges.
      source: the file from which they were read.
    """

    rows: Sequence[LinkRow]
    source: str = ''

    def of(self, dtype: str, model: str) -> list[LinkRow]:
        """Returns the rows of a type, for any model or for this one.

        Raises:
          UsageError: all rows are of other types, or of other models.
        """
        of_type = [row for row in self.rows if row.dtype == dtype]
        if not of_type:
            found = alternatives(sorted({row.dtype for row in self.rows}))
            raise UsageError(
                f'{self.source}: its links were measured with {found}, and this run sends {dtype}; measure them with '
                f'{dtype}, or give a result in the other precision'
            )
        of_model = [row for row in of_type if row.model in (None, model)]
        if not of_model:
            found = alternatives(sorted({str(row.model) for row in of_type}))
            raise UsageError(
                f'{self.source}: its links were measured with the gradients of {found}, and the result is of {model}; '
                f'measure them with {spelled("model", model)}, or without a model'
            )
        return of_model


def write_links(rows: Sequence[LinkRow], path: str | Path) -> None:
    """Writes a file of links.

    Raises:
      OSError: it cannot be written.
    """
    document = {'schema': LINKS, 'schema_version': SCHEMA_VERSION, 'rows': [asdict(row) for row in rows]}
    write_whole(json.dumps(document, indent=1) + '\n', path)


def read_links(path: str) -> Links:
    """Reads a file of links.

    Raises:
      UsageError: the file cannot be read, is none of links, or has no rows, too many or a wrong one.
    """
    hint = 'give a file of measured links, see docs/predict.md'
    try:
        document = json.loads(read_regular(path, _MOST_BYTES).decode())
    except OSError as error:
        raise UsageError(f'{path}: it cannot be read ({error.strerror}); {hint}') from None
    except (ValueError, RecursionError):
        raise UsageError(f'{path}: it is no JSON document; {hint}') from None
    if not isinstance(document, dict) or document.get('schema') != LINKS:
        raise UsageError(f'{path}: it holds no links; {hint}')
    version = document.get('schema_version')
    if version != SCHEMA_VERSION:
        raise UsageError(
            f'{path}: its schema_version is {str(version)[:20]}, and this program reads {SCHEMA_VERSION}; measure again'
        )
    rows = document.get('rows')
    if not isinstance(rows, list) or not rows:
        raise UsageError(f'{path}: it has no rows; measure the links again')
    if len(rows) > MOST_ROWS:
        raise UsageError(f'{path}: it has {len(rows)} rows, and {MOST_ROWS} are the most; keep fewer sizes')
    return Links([_read_row(row, f'{path}: row {number}') for number, row in enumerate(rows, 1)], path)


def _read_row(row: Any, where: str) -> LinkRow:
    if not isinstance(row, dict):
        raise UsageError(f'{where} is no object; measure the links again')

    def refuse(name: str, expected: str) -> UsageError:
        return UsageError(f'{where}: {name} is {str(row.get(name))[:40]!r}, not {expected}; measure the links again')

    def whole(name: str, least: int, default: int | None = None) -> int:
        value = row.get(name, default)
        if type(value) is not int or not least <= value < 2**53:
            raise refuse(name, f'an integer of at least {least}')
        return value

    for name, choices in (('exchange', EXCHANGES), ('dtype', DTYPE_BYTES)):
        if not isinstance(row.get(name), str) or row[name] not in choices:
            raise refuse(name, f'one of {", ".join(choices)}')
    seconds, model, slices = row.get('seconds'), row.get('model'), row.get('slices', True)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise refuse('seconds', 'a number above 0')
    if model is not None and not isinstance(model, str):
        raise refuse('model', 'a name')
    if not isinstance(slices, bool):
        raise refuse('slices', 'true or false')
    size, hosts, server_hosts = whole('bytes', 1), whole('hosts', 1, 1), whole('server_hosts', 0, 0)
    has_servers = EXCHANGES[row['exchange']] is Exchange.SERVERS
    if server_hosts and not (has_servers and server_hosts < hosts):
        raise refuse('server_hosts', 'a part of the hosts of parameter servers')
    found = LinkRow(
        row['exchange'],
        row['dtype'],
        hosts,
        whole('workers', hosts - server_hosts, 1),
        whole('devices', 1, 1),
        whole('servers', max(int(has_servers), server_hosts), 0),
        size,
        whole('tensors', 1, 1),
        whole('largest', 1, size),
        float(seconds),
        model,
        slices,
        server_hosts,
    )
    if not found.is_exchange:
        raise UsageError(f'{where}: it has one device, and an exchange needs two; measure the links again')
    return found


def read_network(text: str) -> float:
    """Returns the bytes/s of a data sheet's number, such as '25Gbit', '100 Mbit/s' or '1Gbps'.

    Raises:
      UsageError: it is no number with a unit of bits, or 0.
    """
    flag = spelled('network', text)
    match = _NETWORK.fullmatch(text.strip())
    if not match:
        raise UsageError(f'{flag}: it is no rate; write a number with kbit, Mbit, Gbit or Tbit, such as 25Gbit')
    rate = float(match[1]) * _PREFIXES[match[2].lower()] / 8
    if not rate:
        raise UsageError(f'{flag}: such a network carries nothing; write its rate, such as 25Gbit')
    return rate


def priors_of_sheet(network: float, latency_us: float | None) -> dict[str, Prior]:
    """Returns what a data sheet says about a host's link.

    Args:
      network: its bytes/s.
      latency_us: its latency in microseconds; None if unknown.
    """
    # The usual rates of scaling.fitting are those between two hosts, as the sheet's.
    found = {'between': usual(network * _PAYLOAD, _SPREAD_OF_SHEET)}
    if latency_us is not None:
        # A logarithm needs more than 0.
        found['latency'] = usual(max(latency_us, 0.01) * 1e-6, _SPREAD_OF_LATENCY)
    return found
