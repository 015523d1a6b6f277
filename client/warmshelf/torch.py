"""What torch gets from a shelf: a lease's tensors, and adapters for the rows of a batch.

Only gathers names that are made elsewhere. Needs the extra ``torch``.
"""

from warmshelf._torch_tensors import tensors
from warmshelf.adapter_bank import AdapterBank, Applied, Slots, apply_bank

__all__ = ["AdapterBank", "Applied", "Slots", "apply_bank", "tensors"]
