"""What torch gets from a shelf: a lease's tensors, here or on a device, and adapters for the rows of a batch.

Only gathers names that are made elsewhere. Needs the extra ``torch``.
"""

from warmshelf._torch_tensors import tensors
from warmshelf.adapter_bank import AdapterBank, Applied, Slots, apply_bank
from warmshelf.device import stream_to_device, to_device

__all__ = ["AdapterBank", "Applied", "Slots", "apply_bank", "stream_to_device", "tensors", "to_device"]
