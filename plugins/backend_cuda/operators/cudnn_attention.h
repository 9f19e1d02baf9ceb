// Attention of packed documents by cuDNN 9's graph API: what stands between the norms and rotation of queries and keys
// and their gradients. A document is an entry of cuDNN's batch, its rows found by ragged offsets on the device (THD).
//
// Plans are built when sizes are asked for, never in a step: for the planned tokens and longest document, and for some
// numbers of documents; a call takes the next larger one, with empty documents behind. The forward pass gives the same
// bits in every run. The backward pass adds to dq with f32 atomics: its last bits differ from run to run (cuDNN 9.19's
// deterministic one needs memory that grows with the square of the length, so it is not used).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "plugins/backend_cuda/operators/device_facts.h"
#include "runtime/operators/attention.h"
#include "runtime/operators/carve.h"

namespace ananke::cuda {

// Offsets in elements, as cuDNN wants them; of all places behind the last document the number of all elements.
struct RaggedScratch {
  std::int32_t* lengths;          // [batch]: of the documents, 0 behind the last
  std::int32_t *q, *k, *log_sum;  // [batch + 1] each
  std::byte* workspace;           // cuDNN's own
  std::size_t workspace_bytes = 0;
};

class CudnnAttention {
 public:
  static constexpr std::int64_t most_documents = 1024;  // of a call
  // Plans are for whole tiles, of tokens and of the longest document.
  static constexpr std::int64_t planned_tokens(std::int64_t tokens) { return (tokens + 127) / 128 * 128; }

  // All bf16, contiguous; q and k as scores want them, log_sum f32 [T, Hq].
  struct Tensors {
    const void *q, *k, *v;
    void *o, *log_sum;
    const void* d_o = nullptr;  // backward only, as those that follow
    void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  };

  // Null, and why, where the library is not found, is too old or cannot be used on this device. On the current device.
  static std::unique_ptr<CudnnAttention> open(std::string& reason);
  virtual ~CudnnAttention() = default;

  // What a call with these sizes may take of scratch memory: known without the library, so that plans of memory are the
  // same on every machine. Plans that need more are not used.
  static RaggedScratch layout(Carve& carve, const Attention::Sizes& planned);

  // "9.19.0"
  virtual std::string version() const = 0;
  // The sizes of the plans that calls with `n` use; builds them where there are none. Thread-safe. Error(config) with
  // cuDNN's reason where it has none for these heads.
  virtual Attention::Sizes planned(const Attention::Sizes& n) = 0;
  // Whether a call with these sizes can be made: planned, and not of too many documents.
  virtual bool takes(const Attention::Sizes& n) = 0;
  // Put on the stream. `offsets`: i32 [segments + 1]; `valid`: on the device, 0 where they are wrong, and then there
  // are no documents.
  virtual void forward(cudaStream_t stream, const Attention::Sizes& n, const std::int32_t* offsets,
                       const std::int32_t* valid, const RaggedScratch& scratch, const Tensors& tensors) = 0;
  virtual void backward(cudaStream_t stream, const Attention::Sizes& n, const std::int32_t* offsets,
                        const std::int32_t* valid, const RaggedScratch& scratch, const Tensors& tensors) = 0;
};

// Fills lengths and offsets of `batch` places.
void fill_ragged(cudaStream_t stream, std::int64_t batch, const Attention::Sizes& n, const std::int32_t* offsets,
                 const std::int32_t* valid, const RaggedScratch& scratch);

}  // namespace ananke::cuda
