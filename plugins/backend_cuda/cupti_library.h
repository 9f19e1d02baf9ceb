// NVIDIA's CUPTI, loaded when a step is traced for the first time: nothing else needs it, and it need not be there.
#pragma once

#include <cupti.h>

#include <string>

namespace ananke::cuda {

// The functions that are used. Those at the end may be missing in an older library: null.
struct CuptiLibrary {
  decltype(&::cuptiActivityEnable) enable = nullptr;
  decltype(&::cuptiActivityDisable) disable = nullptr;
  decltype(&::cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&::cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&::cuptiActivityFlushAll) flush = nullptr;
  decltype(&::cuptiActivityGetNumDroppedRecords) dropped = nullptr;
  decltype(&::cuptiActivityRegisterTimestampCallback) register_timestamp = nullptr;
  decltype(&::cuptiGetTimestamp) timestamp = nullptr;
  decltype(&::cuptiGetStreamIdEx) stream_id = nullptr;
  decltype(&::cuptiGetResultString) result_text = nullptr;
  CUptiResult (*enable_driver_call)(CUpti_CallbackId, std::uint8_t) = nullptr;
  CUptiResult (*enable_runtime_call)(CUpti_CallbackId, std::uint8_t) = nullptr;
};

// Null where it is not found or cannot be used: `why` says where it was looked for and what was wrong. Looks for the
// version of the CUDA runtime that this process has: where the loader looks, beside the runtime, in pip's folder of it,
// and where it was when this was built. Any thread; stays loaded.
const CuptiLibrary* cupti_library(std::string* why);

}  // namespace ananke::cuda
