// Registers kernels that work in host memory with every device.
#ifndef TFDIST_OPS_KERNELS_HOST_KERNEL_H_
#define TFDIST_OPS_KERNELS_HOST_KERNEL_H_

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

// Registers `kernel` for the op `name` on the CPU, and on every device for which the op has no
// kernel of its own. For those devices TensorFlow copies the inputs to host memory before the
// kernel runs, and the outputs to the device when an op there reads them. So an op in the scope of
// such a device needs no soft placement.
//
// An op without a device stays on the CPU, by its priority. By default TensorFlow prefers a GPU
// (SupportedDeviceTypesForNode in core/framework/op_kernel.h).
//
// The further arguments continue the kernel's definition: `.HostMemory(name)` for each input and
// output. Without it the kernel may get an address of the device's memory, which it must not read.
// tests/parallel/collectives/test_other_devices.py checks that none is missing.
#define REGISTER_HOST_KERNEL(name, kernel, ...)                                                \
  REGISTER_KERNEL_BUILDER(Name(name).Device(::tensorflow::DEVICE_CPU).Priority(1) __VA_ARGS__, \
                          kernel);                                                             \
  REGISTER_KERNEL_BUILDER(Name(name).Device(::tensorflow::DEVICE_DEFAULT) __VA_ARGS__, kernel)

#endif  // TFDIST_OPS_KERNELS_HOST_KERNEL_H_
