"""Predicts step times on more devices or of other models, see docs/compare.md. Without TensorFlow.

All seconds are step times with the same number of images per device.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tf_cnn.system.errors import UsageError, format_flag

# The factor by which several devices compute longer than one: they share power, memory and the
# host's processors.
CROWDING = 1.03
ANOTHER_MODEL, MORE_DEVICES = 'another model', 'more devices'
# The 1.25 % and 98.75 % quantiles of log(predicted seconds / measured seconds) for 1, 2, ...
# doublings; the last pair is for all further doublings. No pair is narrower than the pair before.
# Source: 206 published throughputs of the original program on six machines, from K80 to RTX 8000.
# Quantiles computed without a machine's rows hold 98 % (another model) and 95 % (more devices) of
# these rows.
ERRORS: Mapping[str, Sequence[tuple[float, float]]] = {
    ANOTHER_MODEL: [(-0.106, 0.067), (-0.328, 0.097), (-0.4, 0.135), (-0.4, 0.168)],
    MORE_DEVICES: [(-0.345, 0.216), (-1.052, 0.366), (-1.052, 0.526), (-1.052, 0.713)],
}
_NETWORK = re.compile(r'(\d+(?:\.\d+)?)\s*([kmgt]?)(?:bit(?:/s)?|bps)', re.IGNORECASE)
_PREFIXES = {'': 1.0, 'k': 1e3, 'm': 1e6, 'g': 1e9, 't': 1e12}
# TCP over Ethernet carries 1448 bytes of each 1538 on the wire (RFC 894, RFC 793, 12 bytes of
# timestamps; 38 bytes of preamble, header, checksum and gap).
_PAYLOAD = 1448 / 1538


@dataclass(frozen=True)
class Series:
    """Step times of one model in one setting, on increasing numbers of devices.

    Attributes:
      gradient_bytes: the bytes of the gradients as sent.
      images_per_device: images per step on each device.
      seconds_on_one_device: step time on one device; None if unknown.
      seconds_by_devices: step time by the number of devices.
    """

    model: str
    gradient_bytes: float
    images_per_device: int
    is_synthetic: bool
    seconds_on_one_device: float | None
    seconds_by_devices: Mapping[int, float]

    def seconds_below(self, devices: int) -> dict[int, float]:
        return {
            number: seconds
            for number, seconds in self.seconds_by_devices.items()
            if number < devices
        }


@dataclass(frozen=True)
class Prediction:
    """A predicted step time with its interval; seconds is None for a band."""

    rule: str
    seconds: float | None
    fastest: float
    slowest: float


def predict(series: Series, other_series: Sequence[Series], devices: int) -> Prediction | None:
    """Predicts a step time from the series itself, or else from the most similar other series.

    Returns None if neither is possible. The other series must have the same machine, mode and
    precision. The series must not have been measured on this number of devices.
    """
    if len(series.seconds_below(devices)) > 1:
        return predict_more_devices(series, devices)
    usable = [
        other
        for other in other_series
        if other.seconds_on_one_device
        and (devices in other.seconds_by_devices or len(other.seconds_below(devices)) > 1)
    ]
    if series.seconds_on_one_device is None or not usable:
        return None

    def distance(other: Series) -> tuple[bool, float, bool, float]:
        """Sorts by: measured on `devices`, similar gradients, synthetic images, similar batches."""
        ratios = (
            series.gradient_bytes / other.gradient_bytes,
            series.images_per_device / other.images_per_device,
        )
        sizes, images = (abs(math.log(ratio)) for ratio in ratios)
        return devices not in other.seconds_by_devices, sizes, not other.is_synthetic, images

    return _predict_from_another_model(series, min(usable, key=distance), devices)


def predict_more_devices(series: Series, devices: int) -> Prediction:
    """Predicts a step time from the series on fewer devices, at least one measurement.

    Each further doubling multiplies the step time by the same factor as the last measured doubling,
    at least by 1. So the logarithm of the efficiency falls linearly.
    """
    seconds_by_devices = series.seconds_below(devices)
    largest = max(seconds_by_devices)
    smaller = max(
        [number for number in seconds_by_devices if 2 * number <= largest]
        or [min(seconds_by_devices)]
    )
    rise = math.log(CROWDING)
    if smaller < largest:
        rise = max(
            0.0,
            math.log(seconds_by_devices[largest] / seconds_by_devices[smaller])
            / math.log2(largest / smaller),
        )
    doublings = math.log2(devices / largest)
    return _add_interval(
        MORE_DEVICES,
        seconds_by_devices[largest] * math.exp(rise * doublings),
        {MORE_DEVICES: doublings},
    )


def _predict_from_another_model(series: Series, other: Series, devices: int) -> Prediction:
    """Predicts a step time from the series on one device and the exchange of another model.

    The exchange is the other model's step time minus CROWDING times its step time on one device. It
    is scaled by the ratio of the gradient bytes. If the other model has the smaller gradients, the
    factor is the square root: an unknown part of the exchange depends on the number of messages.
    """
    other_seconds, doublings = (
        other.seconds_by_devices.get(devices),
        {ANOTHER_MODEL: math.log2(devices)},
    )
    if other_seconds is None:
        other_seconds = predict_more_devices(other, devices).seconds
        doublings[MORE_DEVICES] = math.log2(devices / max(other.seconds_below(devices)))
    ratio = series.gradient_bytes / other.gradient_bytes
    exchange = max(0.0, (other_seconds or 0.0) - CROWDING * (other.seconds_on_one_device or 0.0))
    seconds = CROWDING * (series.seconds_on_one_device or 0.0) + exchange * min(
        ratio, math.sqrt(ratio)
    )
    return _add_interval(f'{ANOTHER_MODEL}: {other.model}', seconds, doublings)


def _add_interval(rule: str, seconds: float, doublings: Mapping[str, float]) -> Prediction:
    """Adds the interval; if two rules were used, their errors multiply."""
    ends = [
        ERRORS[name][min(math.ceil(number), len(ERRORS[name])) - 1]
        for name, number in doublings.items()
    ]
    low, high = (sum(end) for end in zip(*ends, strict=True))
    return Prediction(rule, seconds, seconds * math.exp(-high), seconds * math.exp(-low))


def link_bytes(size: float, workers: int, devices: int, servers: int) -> float:
    """Returns the bytes that the busiest link carries in each direction; 0 without a link.

    size is the bytes of the gradients. Several workers run on different hosts, and the links are
    between these; with one worker, the links are between its devices. Each host has at most one
    parameter server; 0 servers mean a ring.
    """
    if workers > 1 and servers:
        # A server exchanges its share with each worker on another host.
        return size * (workers - 1) / min(servers, workers)
    # Patarasuk and Yuan 2009, section 3: each of n sends 2 (n - 1) / n of the gradients.
    number = workers if workers > 1 else devices
    return 2 * (number - 1) / number * size


def num_transfers(workers: int, servers: int) -> int:
    """Returns how many transfers follow each other: with servers, gradients out and values back."""
    return 2 if workers > 1 and servers else 1


def read_network(text: str) -> float:
    """Returns the bytes/s of TCP over a link, such as '25Gbit', '100 Mbit/s' or '1Gbps'."""
    match = _NETWORK.fullmatch(text.strip())
    rate = float(match[1]) * _PREFIXES[match[2].lower()] / 8 if match else 0.0
    if not 0 < rate < math.inf:
        problem = 'not a rate; use a number above 0 with kbit, Mbit, Gbit or Tbit, such as 25Gbit'
        raise UsageError(f'{format_flag("network", text)}: {problem}')
    return rate * _PAYLOAD
