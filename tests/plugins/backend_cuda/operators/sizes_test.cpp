// Operators of no device: what a dry run asks, and what is refused before anything is put on a stream.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>

#include "plugins/backend_cuda/operators/cuda_operators.h"
#include "plugins/backend_host/host_stream.h"
#include "runtime/base/error.h"

namespace ananke::cuda {
namespace {

class ZeroedMemory final : public MemorySource {
 public:
  // Pages that nothing touches cost nothing.
  void* allocate(std::size_t bytes) override {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
  }
  void release(void* memory, std::size_t bytes) noexcept override { munmap(memory, bytes); }
  const char* name() const override { return "host memory"; }
};

struct Planned {
  explicit Planned(DType widest = DType::f32, AttentionChoice attention = AttentionChoice::own,
                   bool deterministic = false)
      : operators(DeviceFacts::expected(), arena, arena, widest, attention, deterministic) {}
  const OperatorSet* operator->() const { return &operators.set(); }
  ZeroedMemory source;
  Arena arena{source};
  CudaOperators operators;
};

const Planned& planned() {
  static const Planned once;
  return once;
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::internal);
    return error.what();
  }
  return "nothing";
}

TEST(CudaOperatorsOfNoDevice, TellSizes) {
  const GroupedMlp::Sizes mlp{1000, 64, 32, 4};
  EXPECT_GE(planned()->grouped_mlp->saved(mlp), std::size_t{2} * 1000 * 32 * 4);
  EXPECT_GE(planned()->grouped_mlp->workspace(mlp), std::size_t{3} * 1000 * 32 * 4);
  const Attention::Sizes attention{1000, 8, 2, 64, 3, 500};
  EXPECT_GE(planned()->attention->saved(attention), std::size_t{1000} * 18 * 4);
  EXPECT_GE(planned()->attention->workspace(attention), std::size_t{1000} * 10 * 64 * 4);
  EXPECT_EQ(planned()->add_rms_norm->saved({0, 64}), 0U);
}

TEST(CudaOperatorsOfNoDevice, TakeHalfTheMemoryForActivationsInBf16) {
  const Planned narrow(DType::bf16);
  const GroupedMlp::Sizes mlp{1000, 64, 32, 4};
  EXPECT_EQ(narrow->grouped_mlp->saved(mlp) * 2, planned()->grouped_mlp->saved(mlp));
  EXPECT_LT(narrow->attention->workspace({1000, 8, 2, 64, 3, 500}),
            planned()->attention->workspace({1000, 8, 2, 64, 3, 500}));
}

TEST(CudaOperatorsOfNoDevice, KeepRoomForCudnnWhereActivationsAreBf16) {
  const Planned own(DType::bf16), narrow(DType::bf16, AttentionChoice::automatic),
      wide(DType::f32, AttentionChoice::automatic);
  const Attention::Sizes n{1000, 8, 2, 64, 3, 500};
  // f32, of 1024 tokens and each query head: dq, dk, dv and the sums of rows; what cuDNN takes beyond; offsets.
  const std::size_t gradients = std::size_t{4} * 1024 * 8 * (3 * 64 + 1),
                    more = narrow->attention->workspace(n) - own->attention->workspace(n);
  EXPECT_GE(more, gradients);
  EXPECT_LE(more, gradients + (std::size_t{33} << 20));
  EXPECT_EQ(wide->attention->workspace(n), planned()->attention->workspace(n));
  EXPECT_EQ(narrow->attention->workspace({0, 8, 2, 64, 0, 0}), own->attention->workspace({0, 8, 2, 64, 0, 0}));
}

TEST(CudaOperatorsOfNoDevice, RefuseTheDeterministicAttentionOfLongDocuments) {
  const Attention::Sizes row{65536, 64, 8, 128, 65536, 65536};
  for (const AttentionChoice choice : {AttentionChoice::automatic, AttentionChoice::cudnn}) {
    const Planned cudnn(DType::bf16, choice, true);
    try {
      cudnn->attention->workspace(row);
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      EXPECT_NE(std::string(error.what()).find("512 GiB for 64 heads and documents of up to 65536 tokens"),
                std::string::npos)
          << error.what();
    }
  }
  const Planned own(DType::bf16, AttentionChoice::own, true), wide(DType::f32, AttentionChoice::automatic, true);
  EXPECT_GT(own->attention->workspace(row), 0U);
  EXPECT_GT(wide->attention->workspace(row), 0U);
}

TEST(CudaOperatorsOfNoDevice, KeepRoomForPairsOfTokensWhereAttentionIsDeterministic) {
  const Planned plain(DType::bf16, AttentionChoice::automatic), same(DType::bf16, AttentionChoice::automatic, true);
  const auto more = [&](const Attention::Sizes& n) {
    return same->attention->workspace(n) - plain->attention->workspace(n);
  };
  const std::size_t pairs = std::size_t{2} * 16 * 4096 * 4096;  // of one document
  EXPECT_EQ(more({16384, 16, 4, 128, 1, 4096}), pairs);
  EXPECT_EQ(more({16384, 16, 4, 128, 3, 4096}), 4 * pairs);
  EXPECT_EQ(more({16384, 16, 4, 128, 16384, 4096}), 16 * pairs) << "no more than 8 GiB";
}

TEST(CudaOperatorsOfNoDevice, RefuseCudnnForF32) {
  try {
    const Planned wide(DType::f32, AttentionChoice::cudnn);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_NE(std::string(error.what()).find("activations are f32"), std::string::npos) << error.what();
  }
}

TEST(CudaOperatorsOfNoDevice, BoundTheLogitsOfAChunk) {
  const std::size_t gigabyte = std::size_t{1} << 30;
  EXPECT_LE(planned()->head_loss->workspace({65536, 2048, 32768}), gigabyte + (1 << 20));
  EXPECT_LE(planned()->head_loss->workspace({65536, 2048, 256000}), gigabyte + (1 << 20));
  EXPECT_LT(planned()->head_loss->workspace({10, 2048, 256000}), std::size_t{10} * 256000 * 4 + 4096);
}

TEST(CudaOperatorsOfNoDevice, RefuseArgumentsAndStreamsOfOthersFirst) {
  HostStream stream("compute");
  alignas(256) char memory[256] = {};
  const auto tensor = [&](DType dtype, Shape shape) { return TensorView{memory, dtype, shape}; };
  using enum DType;
  EXPECT_EQ(refusal([&] {
              planned()->linear->forward(stream, {tensor(bf16, {2, 3}), tensor(f32, {2, 3}), tensor(bf16, {2, 2})});
            }),
            "linear forward: weight is f32 [2, 3], but bf16 [2, 3] is needed");
  EXPECT_EQ(refusal([&] {
              planned()->linear->forward(stream, {tensor(f64, {2, 3}), tensor(f64, {2, 3}), tensor(f64, {2, 2})});
            }),
            "linear forward: x is f64 [2, 3], but f32 [2, 3] is needed");
  EXPECT_NE(refusal([&] {
              planned()->elementwise->add(stream, tensor(f32, {4}), tensor(f32, {4}), tensor(f32, {4}));
            }).find("another backend"),
            std::string::npos);
}

}  // namespace
}  // namespace ananke::cuda
