// A backend whose streams only collect work until somebody synchronizes, and then run it in the most adverse order that
// the events allow: one stream as far as it gets before the other. What lacks an event gives wrong numbers, on every
// run. Ranks are threads; a collective waits for its peers.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/operators/reference/wire.h"
#include "runtime/roles/backend.h"

namespace ananke::testing {

class DeferredEvent final : public Event {
 public:
  bool reached() const override { return reached_ >= recorded_; }
  void synchronize() const override {
    fail(ErrorKind::internal, "the host waits for an event in the middle of a step");
  }
  std::uint64_t recorded_ = 0, reached_ = 0;
};

class DeferredDevice;

class DeferredStream final : public Stream {
 public:
  // Returns false when it cannot run yet.
  using Work = std::function<bool()>;
  void put(std::function<void()> work) {
    work_.push_back([work = std::move(work)] {
      work();
      return true;
    });
  }
  void record(Event& event) override {
    auto& mine = static_cast<DeferredEvent&>(event);
    work_.push_back([&mine, point = ++mine.recorded_] {
      mine.reached_ = point;
      return true;
    });
  }
  void wait(const Event& event) override {
    const auto& mine = static_cast<const DeferredEvent&>(event);
    work_.push_back([&mine, point = mine.recorded_] { return mine.reached_ >= point; });
  }
  void synchronize() override { drain_(); }

 private:
  friend class DeferredDevice;
  bool step() {
    if (work_.empty() || !work_.front()()) return false;
    work_.pop_front();
    return true;
  }
  std::deque<Work> work_;
  std::function<void()> drain_;
};

class HeapMemory final : public MemorySource {
 public:
  void* allocate(std::size_t bytes) override {
    void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(memory, 0xff, bytes);  // NaN: what nobody wrote shows
    return memory;
  }
  void release(void* memory, std::size_t) noexcept override { std::free(memory); }
  const char* name() const override { return "test memory"; }
};

using Eager = Resource;  // the stream that runs as far as it gets before any other

class DeferredDevice final : public Device {
 public:
  explicit DeferredDevice(Eager eager) : eager_(eager) {
    for (DeferredStream& stream : streams_) stream.drain_ = [this] { drain(); };
  }
  std::string description() const override { return "deferred"; }
  Arena& memory() override { return arena_; }
  Arena& host_memory() override { return arena_; }
  DeferredStream& stream(Resource resource) override { return streams_[static_cast<int>(resource)]; }
  std::unique_ptr<Event> make_event() override { return std::make_unique<DeferredEvent>(); }
  void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override {
    static_cast<DeferredStream&>(stream).put([=] { std::memcpy(to, from, bytes); });
  }
  void zero(Stream& stream, void* to, std::size_t bytes) override {
    static_cast<DeferredStream&>(stream).put([=] { std::memset(to, 0, bytes); });
  }
  void read(const TensorView&, void*) override { fail(ErrorKind::internal, "the host reads a device value"); }
  std::uint64_t reads() const override { return 0; }

 private:
  void drain() {
    std::vector<DeferredStream*> order;
    for (const Resource one :
         {Resource::compute, Resource::nvlink, Resource::network, Resource::host_to_device, Resource::device_to_host}) {
      order.push_back(&stream(one));
    }
    const auto first = std::find(order.begin(), order.end(), &stream(eager_));
    std::rotate(order.begin(), first, first + 1);
    while (std::ranges::any_of(order, [](DeferredStream* one) { return one->step(); })) {
    }
    for (const DeferredStream* stream : order) ANANKE_CHECK(stream->work_.empty(), "streams wait for each other");
  }
  HeapMemory source_;
  Arena arena_{source_};
  DeferredStream streams_[resource_count];
  Eager eager_;
};

// Where the ranks of one axis meet.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size), buffers_(static_cast<std::size_t>(size)) {}
  void publish(int rank, void* buffer) {
    buffers_[static_cast<std::size_t>(rank)] = buffer;
    meet();
  }
  std::byte* bytes(int rank) const { return static_cast<std::byte*>(buffers_[static_cast<std::size_t>(rank)]); }
  float* buffer(int rank) const { return static_cast<float*>(buffers_[static_cast<std::size_t>(rank)]); }
  int size() const { return size_; }
  void meet() {
    std::unique_lock lock(guard_);
    const std::uint64_t round = round_;
    if (++here_ == size_) {
      here_ = 0;
      ++round_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return round_ != round; });
    }
  }

 private:
  const int size_;
  std::vector<void*> buffers_;
  std::mutex guard_;
  std::condition_variable all_here_;
  int here_ = 0;
  std::uint64_t round_ = 0;
};

// Writes what is issued into `log`: "gather 32", "reduce 32", "sum 32" (elements of one rank's part), after `prefix`.
class MeetingCommunicator final : public Communicator {
 public:
  // `shares`: memory.
  MeetingCommunicator(Meeting& meeting, int rank, std::vector<std::string>& log, std::string prefix = "",
                      bool shares = false)
      : meeting_(meeting), rank_(rank), log_(log), prefix_(std::move(prefix)), shares_(shares) {}
  int rank() const override { return rank_; }
  int size() const override { return meeting_.size(); }
  void all_gather(Stream& stream, const TensorView& send, const TensorView& receive) override {
    log_.push_back(prefix_ + fmt::format("gather {}", send.elements()));
    ANANKE_CHECK(receive.elements() == send.elements() * size(), "gather of {} into {}", send.elements(),
                 receive.elements());
    put(stream, [=, this] {
      meeting_.publish(rank_, send.data);
      for (int r = 0; r < size(); ++r) {
        std::memcpy(static_cast<std::byte*>(receive.data) + static_cast<std::size_t>(r) * send.bytes(),
                    meeting_.bytes(r), send.bytes());
      }
      meeting_.meet();
    });
  }
  void reduce_scatter(Stream& stream, const TensorView& send, const TensorView& receive) override {
    log_.push_back(prefix_ + fmt::format("reduce {}", receive.elements()));
    ANANKE_CHECK(send.elements() == receive.elements() * size(), "reduction of {} to {}", send.elements(),
                 receive.elements());
    put(stream, [=, this] {
      meeting_.publish(rank_, send.data);
      for (std::int64_t i = 0; i < receive.elements(); ++i) {
        float sum = 0;
        for (int r = 0; r < size(); ++r) sum += meeting_.buffer(r)[rank_ * receive.elements() + i];
        receive.as<float>()[i] = sum;
      }
      meeting_.meet();
    });
  }
  void all_reduce(Stream& stream, const TensorView& buffer, Reduction) override {
    log_.push_back(prefix_ + fmt::format("sum {}", buffer.elements()));
    put(stream, [=, this] {
      meeting_.publish(rank_, buffer.data);
      std::vector<float> sums(static_cast<std::size_t>(buffer.elements()), 0.0f);
      for (int r = 0; r < size(); ++r) {
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += meeting_.buffer(r)[i];
      }
      meeting_.meet();
      std::memcpy(buffer.data, sums.data(), buffer.bytes());
    });
  }
  void broadcast(Stream&, const TensorView&, int) override { fail(ErrorKind::internal, "not used"); }
  // Equal counts.
  void all_to_all(Stream& stream, const TensorView& send, std::span<const std::int64_t> counts,
                  const TensorView& receive, std::span<const std::int64_t> receive_counts) override {
    ANANKE_CHECK(std::ranges::equal(counts, receive_counts) && counts.size() == static_cast<std::size_t>(size()),
                 "an exchange of {} and {} counts", counts.size(), receive_counts.size());
    log_.push_back(prefix_ + fmt::format("exchange {}", counts[0]));
    const std::size_t part = static_cast<std::size_t>(counts[0]) * size_of(send.dtype);
    put(stream, [=, this] {
      meeting_.publish(rank_, send.data);
      for (int r = 0; r < size(); ++r) {
        std::memcpy(static_cast<std::byte*>(receive.data) + static_cast<std::size_t>(r) * part,
                    meeting_.bytes(r) + static_cast<std::size_t>(rank_) * part, part);
      }
      meeting_.meet();
    });
  }
  bool share(Stream&, const TensorView&) override { return shares_ && size() > 1; }
  void sum_parts(Stream& stream, const TensorView& parts, const TensorView& sum, bool add) override {
    log_.push_back(prefix_ + fmt::format("parts {}", sum.elements()));
    put(stream, [=, this] {
      meeting_.publish(rank_, parts.data);
      const std::int64_t count = sum.elements();
      std::vector<std::uint16_t> landed;
      for (int r = 0; r < size(); ++r) {
        const auto* row = reinterpret_cast<const std::uint16_t*>(meeting_.bytes(r)) + rank_ * count;
        landed.insert(landed.end(), row, row + count);
      }
      reference::landing_sum(size(), count, landed.data(), sum.as<float>(), add);
      meeting_.meet();
    });
  }
  void abort() noexcept override {}

 private:
  static void put(Stream& stream, std::function<void()> work) {
    static_cast<DeferredStream&>(stream).put(std::move(work));
  }
  Meeting& meeting_;
  int rank_;
  std::vector<std::string>& log_;
  std::string prefix_;
  bool shares_;
};

// An element of an f32 or bf16 view.
inline float value_of(const TensorView& view, std::int64_t at) {
  return view.dtype == DType::f32 ? view.as<float>()[at]
                                  : reference::from_bf16(static_cast<const std::uint16_t*>(view.data)[at]);
}
inline void set_value(const TensorView& view, std::int64_t at, float value) {
  if (view.dtype == DType::f32) {
    view.as<float>()[at] = value;
  } else {
    static_cast<std::uint16_t*>(view.data)[at] = reference::to_bf16(value);
  }
}

class DeferredElementwise final : public Elementwise {
 public:
  void add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& y) override {
    static_cast<DeferredStream&>(stream).put([=] {
      for (std::int64_t i = 0; i < y.elements(); ++i) set_value(y, i, value_of(a, i) + value_of(b, i));
    });
  }
  void square_sum(Stream& stream, const TensorView& x, const TensorView& sum) override {
    static_cast<DeferredStream&>(stream).put([=] {
      for (std::int64_t i = 0; i < x.elements(); ++i) {
        *sum.as<double>() += static_cast<double>(x.as<float>()[i]) * static_cast<double>(x.as<float>()[i]);
      }
    });
  }
  void add_in_order(Stream&, const TensorView&, const TensorView&) override { fail(ErrorKind::internal, "not used"); }
  void reciprocal(Stream&, const TensorView&, const TensorView&) override { fail(ErrorKind::internal, "not used"); }
  void clip(Stream&, const Clip&) override { fail(ErrorKind::internal, "not used"); }
  void hash(Stream&, const TensorView&, const TensorView&) override { fail(ErrorKind::internal, "not used"); }
};

class DeferredWire final : public Wire {
 public:
  void to_bf16(Stream& stream, const ToBf16& a) override {
    put(stream, [=] {
      const std::int64_t columns = a.y.shape[1];
      for (std::int64_t i = 0; i < a.y.elements(); ++i) {
        static_cast<std::uint16_t*>(a.y.data)[i] =
            reference::to_bf16(a.x.as<float>()[i / columns * a.x.shape[1] + a.first + i % columns]);
      }
    });
  }
  void from_bf16(Stream& stream, const TensorView& x, const TensorView& y) override {
    put(stream, [=] {
      for (std::int64_t i = 0; i < y.elements(); ++i) {
        y.as<float>()[i] = reference::from_bf16(static_cast<const std::uint16_t*>(x.data)[i]);
      }
    });
  }
  void landing_sum(Stream& stream, const LandingSum& a) override {
    put(stream, [=] {
      reference::landing_sum(a.landed.shape[0], a.sum.elements(), static_cast<const std::uint16_t*>(a.landed.data),
                             a.sum.as<float>(), a.add);
    });
  }
  void quantise(Stream& stream, const TensorView& pieces, const TensorView& values, const TensorView& bytes) override {
    put(stream, [=] {
      for (const BlockPiece& piece : pieces_in(pieces)) {
        reference::quantise(piece, values.as<float>(), bytes.as<std::uint8_t>());
      }
    });
  }
  void dequantise(Stream& stream, const TensorView& pieces, const TensorView& bytes,
                  const TensorView& values) override {
    put(stream, [=] {
      std::vector<float> all(static_cast<std::size_t>(values.elements()));
      const bool wide = values.dtype == DType::f32;
      for (const BlockPiece& piece : pieces_in(pieces)) {
        reference::dequantise(piece, bytes.as<std::uint8_t>(), all.data());
        for (std::int64_t i = piece.values; i < piece.values + piece.count; ++i) {
          const float value = all[static_cast<std::size_t>(i)];
          if (wide) {
            values.as<float>()[i] = value;
          } else {
            static_cast<std::uint16_t*>(values.data)[i] = reference::to_bf16(value);
          }
        }
      }
    });
  }

 private:
  static void put(Stream& stream, std::function<void()> work) {
    static_cast<DeferredStream&>(stream).put(std::move(work));
  }
  static std::span<const BlockPiece> pieces_in(const TensorView& table) {
    return {static_cast<const BlockPiece*>(table.data), static_cast<std::size_t>(table.shape[0])};
  }
};

class DeferredBackend final : public Backend {
 public:
  explicit DeferredBackend(Eager eager) : device_(eager) {
    operators_.elementwise = &elementwise_;
    operators_.wire = &wire_;
  }
  DeferredDevice& device() override { return device_; }
  const OperatorSet& operators() override { return operators_; }
  std::unique_ptr<Communicator> make_communicator(const std::string&, std::span<const int>, Rendezvous&) override {
    fail(ErrorKind::internal, "not used");
  }

 private:
  DeferredDevice device_;
  DeferredElementwise elementwise_;
  DeferredWire wire_;
  OperatorSet operators_;
};

}  // namespace ananke::testing
