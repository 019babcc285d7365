// The source of gather.ptx: gather_ptx_test compares the two where there is an nvcc.
#include "gpu/gather_asm.cuh"
#include "gpu/gather_kernels.cuh"
#include "gpu/strided_kernels.cuh"
