#pragma once
// GPUs that plans know by name: what they hold, and the rates that kernels reach on them.
#include <optional>
#include <string>

#include "kernels/device_plan.h"
#include "parallel/schedule/simulate.h"

namespace weft {

// Rates are the datasheet's: bf16 on tensor cores without sparsity and with sums in f32, f32
// without tensor cores, bytes in one direction.
struct KnownDevice {
  const char* name;         // "RTX 4090"
  const char* driver_name;  // "NVIDIA GeForce RTX 4090"
  int multiprocessors;
  int major, minor;  // compute capability
  int mebibytes;     // as the driver reports them
  double bf16_tflops, f32_tflops;
  double memory_gbs;
  double host_gbs;  // reached by copies of pinned memory
  double link_gbs;  // to another such GPU: NVLink, the bus, or through the host's memory

  DeviceTraits traits() const;
  // The rates that kernels reach: the shares of an H200's datasheet that were measured on one.
  DeviceModel model(DType dtype) const;
  // The link between two such GPUs.
  Link link() const { return {.latency_s = 10e-6, .bytes_per_s = link_gbs * 1e9}; }
};

// The device of plans where none is installed or named: an H200.
const KnownDevice& assumed_device();
// Finds a device by either of its names; case, spaces, dashes, "NVIDIA" and "GeForce" do not count.
// nullptr: it is not known.
const KnownDevice* find_known_device(const std::string& name);
// "H100 SXM, H100 PCIe, ..."
std::string known_device_names();

// The device that a plan is made for.
struct PlannedDevice {
  DeviceTraits traits;
  const KnownDevice* rates;  // of the same name where it is known, else an H200's
  std::optional<Device> here;
  bool named = false;  // by its user; else it is assumed where it is not here

  std::string description() const;  // "NVIDIA H200 (assumed: no such device is here)"
};

}  // namespace weft
