"""Predicts steps on more devices or of other models, by two rules and a band; see docs/compare.md.
Without TensorFlow.

All seconds are those of a step with the same images on each device.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Devices of one cluster compute this much longer than one alone: they share power, memory and the
# host's processors.
CROWDING = 1.03
ANOTHER_MODEL, MORE_DEVICES = 'another model', 'more devices'
# For 1, 2 ... doublings, the last for all further ones: the 1.25 % and 98.75 % quantiles of the
# logarithm of predicted over measured seconds, and no narrower than for fewer doublings. They are
# those of 206 published throughputs of the original program on six machines, of K80 to RTX 8000.
# With a machine's own rows left out they hold 98 % (another model) and 95 % (more devices) of
# these.
ERRORS: Mapping[str, Sequence[tuple[float, float]]] = {
    ANOTHER_MODEL: [(-0.106, 0.067), (-0.328, 0.097), (-0.4, 0.135), (-0.4, 0.168)],
    MORE_DEVICES: [(-0.345, 0.216), (-1.052, 0.366), (-1.052, 0.526), (-1.052, 0.713)],
}


@dataclass(frozen=True)
class Series:
    """Measured steps of one model in one setting, on more and more devices.

    Attributes:
      gradient_bytes: the bytes of its gradients, as they are sent.
      images: images of a step on each device.
      alone: seconds on one device; None if unknown.
      seconds: seconds by the number of devices.
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
    """The seconds of a step by a rule, None for a band, and the ends of their interval or of the
    band.
    """

    rule: str
    seconds: float | None
    fastest: float
    slowest: float


def predict(series: Series, other_series: Sequence[Series], devices: int) -> Prediction | None:
    """Predicts a series from itself, or else from the most similar of others; None if neither can.

    The others are of the same machine, mode and precision. The series was not measured on this
    number of devices.
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
        """Measured there, similar gradients, no wait for images, similar batches: in this order."""
        ratios = (
            series.gradient_bytes / other.gradient_bytes,
            series.images_per_device / other.images_per_device,
        )
        sizes, images = (abs(math.log(ratio)) for ratio in ratios)
        return devices not in other.seconds_by_devices, sizes, not other.is_synthetic, images

    return _predict_from_another_model(series, min(usable, key=distance), devices)


def predict_more_devices(series: Series, devices: int) -> Prediction:
    """Predicts a series from its steps on fewer devices, at least one.

    The logarithm of the seconds rises with each further doubling as it did over the last one
    measured, and never falls. So the logarithm of the efficiency falls on.
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
    """Predicts a series from its step on one device, and from what another one takes longer on
    several.

    What the other takes beyond its step on one device and CROWDING is its exchange, which grows
    with the bytes. If its gradients are the smaller ones, an unknown part of it depends on the
    number of messages: it grows with the square root.
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
    """Adds the interval; the errors of two rules multiply."""
    ends = [
        ERRORS[name][min(math.ceil(number), len(ERRORS[name])) - 1]
        for name, number in doublings.items()
    ]
    low, high = (sum(end) for end in zip(*ends, strict=True))
    return Prediction(rule, seconds, seconds * math.exp(-high), seconds * math.exp(-low))


def link_bytes(size: float, workers: int, devices: int, servers: int) -> float:
    """Returns the bytes that the busiest link carries, in each direction, for gradients of size
    bytes; 0 without one.

    Links are those between hosts with one worker each; of one worker, those between its devices.
    There is at most one parameter server on each host of the workers; with 0 servers, a ring.
    """
    if workers > 1 and servers:
        # A server exchanges its share with every worker on another host.
        return size * (workers - 1) / min(servers, workers)
    # Patarasuk and Yuan 2009, section 3: each of n sends 2 (n - 1) / n of the gradients.
    number = workers if workers > 1 else devices
    return 2 * (number - 1) / number * size


def num_transfers(workers: int, servers: int) -> int:
    """Returns how often these bytes cross, one after the other: gradients go to servers, then
    values come back.
    """
    return 2 if workers > 1 and servers else 1
