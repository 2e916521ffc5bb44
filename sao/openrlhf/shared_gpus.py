"""GPUs that the processes of a run share on one node: OpenRLHF asks Ray for whole ones, and gets parts.

Ray shows each process the GPU that its part is of, as it does with a whole one.
"""

from typing import Any

from ray.util.placement_group import PlacementGroup, placement_group


class SharingClass:
    """A Ray class whose instances take `share` of each GPU that is asked for."""

    def __init__(self, ray_class: Any, share: float) -> None:
        self.ray_class, self.share = ray_class, share

    def options(self, *, num_gpus: float, **named: Any) -> Any:
        """The class with Ray's options, ready for `remote`."""
        return self.ray_class.options(num_gpus=num_gpus * self.share, **named)


def sharing_placement_group(share: float, bundles: list[dict[str, float]], **named: Any) -> PlacementGroup:
    """Ray's placement group with `share` of each GPU of the bundles."""
    shared = [bundle | {"GPU": bundle["GPU"] * share} for bundle in bundles]
    return placement_group(shared, **named)
