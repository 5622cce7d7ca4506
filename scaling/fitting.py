"""Fits the rates of a machine and its links to what was measured, starting from what is usual.

Every rate has a prior: what is usual, and by how much machines differ. Measurements move a rate as far as they say
something about it (a maximum a posteriori estimate). What stays uncertain goes into the interval of a prediction.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scaling.terms import Exchange, ModelledCluster, Rates, Terms, Work, exchange_seconds, terms_of

Vector = NDArray[np.float64]
# A rate, and what it belongs to: a work, a label of links, or everything ('').
_Name = tuple[str, str]


@dataclass(frozen=True)
class Prior:
    """What is known about the logarithm of a rate before anything is measured: a normal distribution.

    Attributes:
      mean: its mean.
      spread: its standard deviation.
    """

    mean: float
    spread: float


def usual(value: float, spread: float) -> Prior:
    """Returns the prior of a rate whose usual value is this one, with the standard deviation of its logarithm."""
    return Prior(math.log(value), spread)


# The constants of the program: round numbers, chosen by the errors on published throughputs of machines that were left
# out of the choice (benchmarks/published.py --leave_one_out); docs/predict.md says what each is.
PRIORS: dict[str, Prior] = {
    'crowding': usual(0.015, 0.9),
    'jitter': usual(0.01, 1.0),
    'image_seconds': usual(20e-6, 1.5),
    'inside': usual(12e9, 0.6),
    # What the logarithm of `inside` gains with each doubling of the devices.
    'inside_step': Prior(-0.13, 0.3),
    # The bus bandwidth that all devices of a host share, and the part of the distance to it that `inside` loses with
    # each doubling.
    'shared': usual(5e9, 0.1),
    'to_shared': Prior(0.45, 0.1),
    # Messages between processes of one host go through its memory several times, and take processor time.
    'loopback': usual(1.2e9, 0.8),
    'tensor_seconds': usual(20e-6, 0.7),
    'between': usual(0.5e9, 1.2),
    'between_step': Prior(-0.1, 0.15),
    # By how much the links of one label differ from those of the machine.
    'between_label': Prior(0.0, 0.2),
    'message_seconds': usual(20e-6, 1.0),
    'latency': usual(50e-6, 1.0),
    'sums': usual(4e9, 0.5),
    # The logit of the part that overlaps: 1 is 73 %, -2 is 12 %.
    'overlap': Prior(1.0, 0.75),
    'overlap_of_fused': Prior(-2.0, 0.75),
    'overlap_on_cpu': Prior(-2.0, 1.0),
    'scale_of_read': Prior(0.1, 0.5),
    'scale': Prior(0.0, 0.27),
    # By how much the exchange of a cluster that was measured alone differs from its formula.
    'scale_of_shape': Prior(0.0, 0.15),
    # Nothing is known about a work before it was measured.
    'compute': Prior(0.0, 3.0),
}
# The standard deviation of the logarithm of a step's seconds from one run to the next, with what no term describes.
NOISE = 0.02
# The same for the seconds of an exchange alone.
EXCHANGE_NOISE = 0.05
# How sharply the logarithm of `inside` begins to approach that of `shared`.
_SOFT = 0.3
_STEP = 1e-4
_MOST_ITERATIONS = 40
# The 97.5 % quantile of the normal distribution: half of a 95 % interval, in standard deviations.
_HALF_INTERVAL = 1.96


@dataclass(frozen=True)
class Measured:
    """A measurement: the seconds of a step, or of an exchange without computing.

    Attributes:
      work: what each device computed and sent.
      cluster: where.
      seconds: the seconds of a step, or of an exchange.
      is_exchange: whether nothing was computed.
    """

    work: Work
    cluster: ModelledCluster
    seconds: float
    is_exchange: bool = False


@dataclass(frozen=True)
class Predicted:
    """A predicted step.

    Attributes:
      terms: its terms; their sum is the most likely seconds.
      low: the lower end of the 95 % interval of the seconds.
      high: its upper end.
    """

    terms: Terms
    low: float
    high: float

    @property
    def seconds(self) -> float:
        return self.terms.seconds


@dataclass
class Fit:
    """The rates of one machine, fitted to measurements.

    Attributes:
      measured: the measurements; all of one machine.
      priors: what is known before them; by default what is usual.
    """

    measured: Sequence[Measured]
    priors: dict[str, Prior] = field(default_factory=lambda: dict(PRIORS))

    def __post_init__(self) -> None:
        self._exchanged = {_shape(one.work, one.cluster) for one in self.measured if one.is_exchange}
        self._places: dict[_Name, int] = {}
        means: list[float] = []
        spreads: list[float] = []
        for name, prior in self._all_priors():
            self._places[name] = len(means)
            means.append(prior.mean)
            spreads.append(prior.spread)
        self._means, self._spreads = np.array(means), np.array(spreads)
        self._depends = [[self._places[name] for name in self._names(one)] for one in self.measured]
        self._values, self._covariance = self._solve()

    def predict(self, work: Work, cluster: ModelledCluster) -> Predicted:
        """Returns the step of a work on a cluster, with its interval.

        A work that was not measured on any cluster has no seconds of computing; its interval is then useless.
        """
        terms = terms_of(work, cluster, self.rates(work, cluster))
        spread = self._spread(work, cluster)
        half = _HALF_INTERVAL * math.hypot(spread, NOISE)
        return Predicted(terms, terms.seconds * math.exp(-half), terms.seconds * math.exp(half))

    def rates(self, work: Work, cluster: ModelledCluster, changes: dict[_Name, float] | None = None) -> Rates:
        """Returns the rates that apply to a work on a cluster.

        Args:
          changes: added to the logarithms of rates.
        """
        known = {name: self._value(name) for name in self.names(work, cluster)}
        for name, change in (changes or {}).items():
            known[name] += change
        return _rates(work, cluster, {name[0]: value for name, value in known.items()})

    def _all_priors(self) -> Iterator[tuple[_Name, Prior]]:
        first: dict[_Name, Measured] = {}
        names: dict[_Name, None] = {}
        for one in self.measured:
            for name in self._names(one):
                names[name] = None
                if name[0] == 'compute' and (
                    name not in first or one.cluster.total_devices < first[name].cluster.total_devices
                ):
                    first[name] = one
        for name in names:
            prior = self._prior(name)
            if name in first:
                prior = Prior(math.log(first[name].seconds), prior.spread)
            yield name, prior

    def _prior(self, name: _Name) -> Prior:
        kind = name[0].rstrip('0123456789')
        return self.priors[kind]

    def _value(self, name: _Name) -> float:
        place = self._places.get(name)
        return float(self._values[place]) if place is not None else self._prior(name).mean

    def _names(self, one: Measured) -> list[_Name]:
        names = self.names(one.work, one.cluster)
        if one.is_exchange:
            unused = ('compute', 'crowding', 'jitter', 'image_seconds', _overlap_name(one.work), 'scale')
            return [name for name in names if name[0] not in unused]
        return names

    def names(self, work: Work, cluster: ModelledCluster) -> list[_Name]:
        """Returns the names of the rates on which a step depends."""
        names = [('compute', work.key)]
        if cluster.exchanges_nothing:
            return names
        label = cluster.label
        inside = label if cluster.inside_label is None else cluster.inside_label
        names += [('crowding', inside), ('jitter', '')]
        if work.reads_images:
            names += [('image_seconds', ''), ('scale_of_read', label)]
        if cluster.exchange is Exchange.NONE:
            return names
        names += [(_overlap_name(work), label), ('scale', f'{label} {work.key}')]
        if (devices := cluster.devices_of_host) > 1:
            names += [('tensor_seconds', inside)]
            if cluster.workers_of_host > 1:
                names += [('loopback', inside)]
            else:
                names += [('inside', inside), *((f'inside_step{level}', inside) for level in _levels(devices))]
                names += [(name, '') for name in ('shared', 'to_shared') if devices > 2]
        if cluster.hosts > 1:
            names += [('between', ''), ('between_label', label), ('message_seconds', label), ('latency', '')]
            names += [(f'between_step{level}', '') for level in _levels(cluster.hosts)]
        if cluster.workers > 1:
            names += [('sums', '')]
        if (shape := _shape(work, cluster)) in self._exchanged:
            names += [('scale_of_shape', shape)]
        return names

    def _log_seconds(self, one: Measured, values: Vector, places: Sequence[int]) -> float:
        known = {name[0]: float(values[place]) for name, place in zip(self._names(one), places, strict=True)}
        rates = _rates(one.work, one.cluster, known)
        seconds = exchange_seconds if one.is_exchange else _step_seconds
        return math.log(max(seconds(one.work, one.cluster, rates), 1e-12))

    def _residuals(self, values: Vector) -> Vector:
        """Returns the differences to the measurements and to the priors, each in standard deviations."""
        differences = [
            (math.log(one.seconds) - self._log_seconds(one, values, places)) / _noise(one)
            for one, places in zip(self.measured, self._depends, strict=True)
        ]
        return np.concatenate([np.array(differences), (values - self._means) / self._spreads])

    def _jacobian(self, values: Vector, residuals: Vector) -> Vector:
        matrix = np.zeros((len(residuals), len(values)))
        for row, (one, places) in enumerate(zip(self.measured, self._depends, strict=True)):
            for place in places:
                moved = values.copy()
                moved[place] += _STEP
                difference = (math.log(one.seconds) - self._log_seconds(one, moved, places)) / _noise(one)
                matrix[row, place] = (difference - residuals[row]) / _STEP
        matrix[len(self.measured) :] = np.diag(1 / self._spreads)
        return matrix

    def _solve(self) -> tuple[Vector, Vector]:
        """Returns the most likely logarithms of the rates and their covariance, by the method of Levenberg-Marquardt.

        Source: Marquardt 1963, doi.org/10.1137/0111030; the covariance is Laplace's approximation.
        """
        values, damping = self._means.copy(), 1e-2
        if not values.size:
            return values, np.zeros((0, 0))
        residuals = self._residuals(values)
        for _ in range(_MOST_ITERATIONS):
            matrix = self._jacobian(values, residuals)
            normal, slope = matrix.T @ matrix, matrix.T @ residuals
            before = residuals @ residuals
            while damping < 1e9:
                step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slope)
                tried = values + np.clip(step, -1, 1)
                found = self._residuals(tried)
                if found @ found < before:
                    break
                damping *= 5
            else:
                break
            values, residuals, damping = tried, found, max(damping / 5, 1e-6)
            if before - residuals @ residuals < 1e-5 * before:
                break
        matrix = self._jacobian(values, residuals)
        return values, np.asarray(np.linalg.inv(matrix.T @ matrix), dtype=np.float64)

    def _spread(self, work: Work, cluster: ModelledCluster) -> float:
        """Returns the standard deviation of the logarithm of the predicted seconds of a step."""
        names = self.names(work, cluster)
        base = math.log(terms_of(work, cluster, self.rates(work, cluster)).seconds)
        slopes = np.zeros(len(self._values))
        unknown = 0.0
        for name in names:
            moved = terms_of(work, cluster, self.rates(work, cluster, {name: _STEP})).seconds
            slope = (math.log(moved) - base) / _STEP
            if name in self._places:
                slopes[self._places[name]] = slope
            else:
                unknown += (slope * self._prior(name).spread) ** 2
        return math.sqrt(float(slopes @ self._covariance @ slopes) + unknown)


def _step_seconds(work: Work, cluster: ModelledCluster, rates: Rates) -> float:
    return terms_of(work, cluster, rates).seconds


def _noise(one: Measured) -> float:
    return EXCHANGE_NOISE if one.is_exchange else NOISE


def _shape(work: Work, cluster: ModelledCluster) -> str:
    cut = '' if work.slices or cluster.servers < 2 else ' whole'
    hosts = f'{cluster.hosts}-{cluster.server_hosts}'
    return f'{cluster.label} {hosts} {cluster.workers} {cluster.devices} {cluster.servers}{cut}'


def _overlap_name(work: Work) -> str:
    if work.fuses:
        return 'overlap_of_fused'
    return 'overlap_on_cpu' if work.shares_cores else 'overlap'


def _levels(number: int) -> range:
    """The doublings from 2 to a number, the last one rounded up: 3 for 5 to 8; as numbers from 2."""
    return range(2, math.ceil(math.log2(number) - 1e-9) + 1)


def _rates(work: Work, cluster: ModelledCluster, known: dict[str, float]) -> Rates:
    """Returns rates from their logarithms; those that are missing do not matter."""

    def rate(name: str) -> float:
        return math.exp(known.get(name, 0.0))

    scale = sum(known.get(name, 0.0) for name in ('scale', 'scale_of_read', 'scale_of_shape'))
    return Rates(
        compute=rate('compute'),
        crowding=rate('crowding'),
        jitter=rate('jitter'),
        image_seconds=rate('image_seconds'),
        inside=math.exp(_inside(cluster.devices_of_host, known)),
        tensor_seconds=rate('tensor_seconds'),
        between=math.exp(_between(cluster.hosts, known)),
        message_seconds=rate('message_seconds'),
        latency=rate('latency'),
        sums=rate('sums'),
        overlap=1 / (1 + math.exp(-known.get(_overlap_name(work), 0.0))),
        scale=math.exp(scale),
    )


def _inside(devices: int, known: dict[str, float]) -> float:
    """Returns the logarithm of the bus bandwidth of so many devices: that of two, changed with each doubling.

    Several processes of a host exchange messages, whose rate does not depend on their number.
    """
    if 'loopback' in known:
        return known['loopback']
    if 'inside' not in known:
        return 0.0
    rate = known['inside']
    for level in _levels(devices) if devices > 1 else ():
        above = _SOFT * float(np.logaddexp(0, (rate - known['shared']) / _SOFT))
        change = known[f'inside_step{level}'] - known['to_shared'] * above
        rate += change * min(1.0, math.log2(devices) - (level - 1))
    return rate


def _between(hosts: int, known: dict[str, float]) -> float:
    """Returns the logarithm of the rate of a host's link with so many hosts."""
    if 'between' not in known:
        return 0.0
    rate = known['between'] + known['between_label']
    for level in _levels(hosts) if hosts > 1 else ():
        rate += known[f'between_step{level}'] * min(1.0, math.log2(hosts) - (level - 1))
    return rate
