#include "tests/plugins/backend_cuda/operators/bench.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <random>

#include "plugins/backend_cuda/check.h"
#include "plugins/backend_cuda/cuda_device.h"
#include "plugins/backend_cuda/environment.h"
#include "plugins/backend_cuda/operators/cuda_operators.h"
#include "plugins/backend_host/host_stream.h"
#include "plugins/backend_host/operators/bf16.h"
#include "plugins/backend_host/operators/host_operators.h"
#include "runtime/base/error.h"

namespace ananke::cuda {
namespace {

constexpr std::size_t guard_bytes = 1024;
constexpr unsigned char poison = 0xff;  // NaN in f32, bf16 and f64, -1 in integers

class HostMemory final : public MemorySource {
 public:
  void* allocate(std::size_t bytes) override { return ::operator new (bytes, std::align_val_t{256}); }
  void release(void* memory, std::size_t) noexcept override { ::operator delete (memory, std::align_val_t{256}); }
  const char* name() const override { return "host memory"; }
};

class HostBench final : public Bench {
 public:
  explicit HostBench(bool rounded) : Bench(DType::f32, rounded) {}
  ~HostBench() override { clear(); }
  const OperatorSet& operators() override { return operators_.set(); }
  Stream& stream() override { return stream_; }
  void finish() override { stream_.synchronize(); }

 protected:
  Arena& memory() override { return arena_; }
  void copy_in(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_out(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }

 private:
  HostMemory source_;
  Arena arena_{source_};
  ThreadPool pool_{2};
  host::HostOperators operators_{pool_};
  HostStream stream_{"compute"};
};

class CudaBench final : public Bench {
 public:
  CudaBench(DType elements, AttentionChoice attention, bool deterministic, GroupedKernels grouped)
      : Bench(elements, elements == DType::bf16),
        device_({0, "test", std::size_t{64} << 20, std::size_t{1} << 20}),
        operators_(device_.facts(), device_.memory(), device_.host_memory(), elements, attention, deterministic,
                   grouped) {}
  ~CudaBench() override { clear(); }
  const OperatorSet& operators() override { return operators_.set(); }
  Stream& stream() override { return device_.stream(Resource::compute); }
  void finish() override {
    stream().synchronize();
    operators_.check();
  }
  std::uint64_t reads() override { return operators_.reads(); }

 protected:
  Arena& memory() override { return device_.memory(); }
  void copy_in(void* to, const void* from, std::size_t bytes) override {
    // In the stream: cudaMemcpy returns while its last piece is still on the way, and no other stream waits for that.
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, raw(stream())), "fill a tensor");
    stream().synchronize();
  }
  void copy_out(void* to, const void* from, std::size_t bytes) override {
    stream().synchronize();
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "read a tensor");
  }

 private:
  CudaDevice device_;
  CudaOperators operators_;
};

float round_to_bf16(float value) { return host::from_bf16(host::to_bf16(value)); }

void expect_close(const std::string& what, const Result& got, const Result& want, bool rounded) {
  ASSERT_EQ(got.values.size(), want.values.size()) << what;
  const double tolerance = rounded ? want.tolerance_bf16 : want.tolerance;
  double largest = 0.1;  // inputs are near 1, so what cancels to 0 keeps errors of that size
  for (const double value : want.values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    const double x = got.values[i], y = want.values[i];
    const bool same = x == y || (std::isnan(x) && std::isnan(y));
    ASSERT_TRUE(same || std::abs(x - y) <= tolerance * largest)
        << what << ": " << want.name << "[" << i << "] of " << got.values.size() << " is " << x << ", the host says "
        << y << " (tolerance " << tolerance * largest << ")";
  }
}

void expect_same(const std::string& what, const Result& got, const Result& before) {
  ASSERT_EQ(got.values.size(), before.values.size());
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint64_t>(got.values[i]), std::bit_cast<std::uint64_t>(before.values[i]))
        << what << ": " << got.name << "[" << i << "] differs between two runs";
  }
}

// One bench for each type serves all tests of a process: opening a device takes longer than most of them.
class SharedBenches final : public testing::Environment {
 public:
  Bench& of(DType elements) {
    std::unique_ptr<Bench>& bench = elements == DType::bf16 ? bf16_ : f32_;
    if (!bench) bench = cuda_bench(elements);
    return *bench;
  }
  void SetUp() override { prepare_environment({}); }
  void TearDown() override {
    f32_.reset();
    bf16_.reset();
  }

 private:
  std::unique_ptr<Bench> f32_, bf16_;
};

SharedBenches& shared_benches() {  // GoogleTest owns it
  static auto* benches = static_cast<SharedBenches*>(testing::AddGlobalTestEnvironment(new SharedBenches));
  return *benches;
}
[[maybe_unused]] const SharedBenches& registered = shared_benches();

}  // namespace

std::unique_ptr<Bench> host_bench(bool rounded) { return std::make_unique<HostBench>(rounded); }
std::unique_ptr<Bench> cuda_bench(DType elements, AttentionChoice attention, bool deterministic,
                                  GroupedKernels grouped) {
  return std::make_unique<CudaBench>(elements, attention, deterministic, grouped);
}

bool compute_capability_9() { return DeviceFacts::of(0).major == 9; }

std::string no_device() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) return std::string("no CUDA device: ") + cudaGetErrorString(result);
  return count == 0 ? "no CUDA device" : "";
}

Tensor Bench::upload(const void* values, DType dtype, const Shape& shape, std::int64_t count) {
  EXPECT_EQ(count, shape.elements());
  Tensor made{memory().allocate(static_cast<std::size_t>(shape.elements()) * size_of(dtype), "test"), {}};
  made.view = {made.memory.data(), dtype, shape};
  if (made.view.bytes() > 0) copy_in(made.view.data, values, made.view.bytes());
  return made;
}

void Bench::download(void* to, const void* from, std::size_t bytes) {
  finish();
  if (bytes > 0) copy_out(to, from, bytes);
}

Tensor Bench::activation(const Floats& values, const Shape& shape) {
  Floats kept = values;
  if (rounded_) std::transform(kept.begin(), kept.end(), kept.begin(), round_to_bf16);
  if (elements_ == DType::f32) return tensor(kept, shape);
  std::vector<std::uint16_t> halves(kept.size());
  std::transform(kept.begin(), kept.end(), halves.begin(), host::to_bf16);
  return upload(halves.data(), DType::bf16, shape, static_cast<std::int64_t>(halves.size()));
}

Tensor Bench::blank(DType dtype, const Shape& shape) {
  const Bytes filling(static_cast<std::size_t>(shape.elements()) * size_of(dtype), poison);
  return upload(filling.data(), dtype, shape, shape.elements());
}

Region Bench::scratch(std::size_t bytes) {
  scratch_.push_back({memory().allocate(bytes + guard_bytes, "test scratch"), bytes});
  const Bytes filling(bytes + guard_bytes, poison);
  copy_in(scratch_.back().memory.data(), filling.data(), filling.size());
  return {scratch_.back().memory.data(), bytes};
}

void Bench::check_guards() {
  finish();
  for (const Guarded& piece : scratch_) {
    Bytes behind(guard_bytes);
    copy_out(behind.data(), static_cast<std::byte*>(piece.memory.data()) + piece.bytes, guard_bytes);
    EXPECT_EQ(behind, Bytes(guard_bytes, poison)) << "written behind a scratch region of " << piece.bytes << " bytes";
  }
}

Floats Bench::floats(const TensorView& view) {
  if (view.dtype == DType::f32) return values<float>(view);
  EXPECT_EQ(view.dtype, DType::bf16);
  std::vector<std::uint16_t> halves(static_cast<std::size_t>(view.elements()));
  download(halves.data(), view.data, view.bytes());
  Floats out(halves.size());
  std::transform(halves.begin(), halves.end(), out.begin(), host::from_bf16);
  return out;
}

Floats Bench::stored(const TensorView& view) {
  Floats out = floats(view);
  if (rounded_) std::transform(out.begin(), out.end(), out.begin(), round_to_bf16);
  return out;
}

void compare_on(Bench& device, const std::string& what, const Run& run, std::size_t same) {
  const bool rounded = device.elements() == DType::bf16;
  const std::string name = what + " in " + name_of(device.elements());
  const auto host = host_bench(rounded);
  const Results want = run(*host);
  const Results first = run(device), second = run(device);
  device.check_guards();
  device.clear();
  ASSERT_EQ(first.size(), want.size()) << name;
  for (std::size_t i = 0; i < want.size(); ++i) {
    expect_close(name, first[i], want[i], rounded);
    if (i < same) expect_same(name, second[i], first[i]);
    expect_close(name, second[i], want[i], rounded);
    if (testing::Test::HasFatalFailure()) return;
  }
}

void compare(const std::string& what, const Run& run, std::initializer_list<DType> elements) {
  for (const DType type : elements) {
    compare_on(shared_benches().of(type), what, run, ~std::size_t{0});
    if (testing::Test::HasFatalFailure()) return;
  }
}

void expect_refused(const std::function<void(Bench&)>& call, std::initializer_list<const char*> words, DType elements) {
  const auto device = cuda_bench(elements);
  try {
    call(*device);
    device->finish();
    ADD_FAILURE() << "not refused: " << *words.begin();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::internal);
    for (const char* word : words) EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

Floats random_floats(std::int64_t n, unsigned seed, float scale) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  Floats values(static_cast<std::size_t>(n));
  for (float& value : values) value = uniform(engine);
  return values;
}

Floats exact_floats(std::int64_t n, unsigned seed) {
  std::mt19937 engine(seed);
  Floats values(static_cast<std::size_t>(n));
  for (float& value : values) value = static_cast<float>(static_cast<int>(engine() % 9) - 4) / 4;
  return values;
}

}  // namespace ananke::cuda
