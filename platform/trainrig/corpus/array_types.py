"""Short names for the types of arrays: `Int64s` is an array of int64 of any shape."""

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
UInt8s = NDArray[np.uint8]
UInt16s = NDArray[np.uint16]
UInt32s = NDArray[np.uint32]
UInt64s = NDArray[np.uint64]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
