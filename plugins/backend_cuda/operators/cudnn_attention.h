// Attention of packed documents by cuDNN 9's graph API: what stands between the norms and rotation of queries and keys
// and their gradients. A document is an entry of cuDNN's batch, its rows found by ragged offsets on the device (THD).
//
// Plans are built when sizes are asked for, never in a step: for the planned tokens and longest document, and for some
// numbers of documents; a call takes the next larger one, with empty documents behind. The forward pass gives the same
// bits in every run. The backward pass adds to dq with f32 atomics: its last bits differ from run to run. The
// deterministic one, where it is asked for, keeps a bf16 number for each query head and pair of tokens of a document,
// and that for as many documents of the longest length as its plan is for, however short they are: with cuDNN 9.19, 512
// GiB for one of 65,536 tokens and 64 heads. So it is there for those that need no more than `most_pair_bytes`.
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

struct RaggedCall {
  cudaStream_t stream;
  Attention::Sizes n;
  const std::int32_t* offsets;  // of the documents, [segments + 1]
  const std::int32_t* valid;    // on the device: 0 where they are wrong, and then there are no documents
  RaggedScratch scratch;
};

class CudnnAttention {
 public:
  static constexpr std::int64_t most_documents = 1024;  // of a call
  static constexpr std::int64_t batch_step = 4;         // from one planned number of documents to the next
  // Plans are for whole tiles, of tokens and of the longest document.
  static constexpr std::int64_t planned_tokens(std::int64_t tokens) { return (tokens + 127) / 128 * 128; }
  // What a deterministic backward pass of `documents` keeps of pairs of tokens; those of more than `most` are not made.
  static constexpr std::int64_t most_pair_bytes = std::int64_t{8} << 30;
  static constexpr std::int64_t pair_bytes(const Attention::Sizes& n, std::int64_t documents) {
    const std::int64_t longest = planned_tokens(n.longest);
    return 2 * documents * n.query_heads * longest * longest;
  }

  // All bf16, contiguous; q and k as scores want them, log_sum f32 [T, Hq].
  struct Tensors {
    const void *q, *k, *v;
    void *o, *log_sum;
    const void* d_o = nullptr;  // backward only, as those that follow
    void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  };

  // Null, and why, where the library is not found, is too old or cannot be used on this device. On the current device.
  // `deterministic`: the backward pass, too, gives the same bits in every run.
  static std::unique_ptr<CudnnAttention> open(std::string& reason, bool deterministic);
  virtual ~CudnnAttention() = default;

  // What a call with these sizes may take of scratch memory: known without the library, so that plans of memory are the
  // same on every machine. Plans that need more are not used.
  static RaggedScratch layout(Carve& carve, const Attention::Sizes& planned, bool deterministic);

  // "9.19.0"
  virtual std::string version() const = 0;
  // The sizes of the plans that calls with `n` use; builds them where there are none. Thread-safe. Error(config) with
  // cuDNN's reason where it has none for these heads.
  virtual Attention::Sizes planned(const Attention::Sizes& n) = 0;
  // Whether a call with these sizes can be made: planned, and not of too many documents.
  virtual bool takes(const Attention::Sizes& n) = 0;
  // Put on the stream.
  virtual void forward(const RaggedCall& call, const Tensors& tensors) = 0;
  virtual void backward(const RaggedCall& call, const Tensors& tensors) = 0;
};

// Fills lengths and offsets of `batch` places.
void fill_ragged(const RaggedCall& call, std::int64_t batch);

}  // namespace ananke::cuda
