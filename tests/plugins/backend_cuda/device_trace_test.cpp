// What the device runs in a traced step is on record, on its stream, by name, and knows its operator.
#include "plugins/backend_cuda/device_trace.h"

#include "ananke/job.pb.h"
#include "ananke/site.pb.h"
#include "plugins/backend_cuda/backend_cuda.h"
#include "tests/plugins/backend_cuda/gpu.h"

namespace ananke::testing {
namespace {

class DeviceTraceGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    ANANKE_NEEDS_GPUS(1);
    backend_ = std::make_unique<BackendCuda>(
        RoleContext{.job = job_, .site = site_, .mesh = {1, 1}, .rank = 0, .node_ranks = 1}, config_);
    backend_->operators();
    a_ = std::make_unique<OnDevice<float>>(device(), std::vector<float>(elements, 1.F));
    sum_ = std::make_unique<OnDevice<float>>(device(), elements);
  }
  void TearDown() override { Trace::make_current(nullptr); }
  Device& device() { return backend_->device(); }
  Stream& compute() { return device().stream(Resource::compute); }
  Stream& network() { return device().stream(Resource::network); }

  void begin() {
    backend_->trace(trace_.get());
    Trace::make_current(trace_.get());
  }
  // As the step tracer ends a step.
  void end() {
    compute().synchronize();
    network().synchronize();
    Trace::make_current(nullptr);
    backend_->trace(nullptr);
  }
  void add() {
    const TraceSpan span(TraceKind::operation, "elementwise.add");
    backend_->operators().elementwise->add(compute(), a_->view(), a_->view(), sum_->view());
  }
  std::vector<TraceTask> told() const {
    std::vector<TraceTask> tasks;
    for (TraceTask& task : trace_->tasks()) tasks.push_back(trace_->resolved(std::move(task)));
    return tasks;
  }
  static std::string argument(const TraceTask& task, const std::string& name) {
    for (const TraceArgument& one : task.text.arguments) {
      if (name == one.name) return one.text;
    }
    return "";
  }

  static constexpr std::int64_t elements = 1 << 20;
  Job job_;
  Site site_;
  plugin::BackendCuda config_;
  std::shared_ptr<Trace> trace_ = std::make_shared<Trace>();
  std::unique_ptr<BackendCuda> backend_;
  std::unique_ptr<OnDevice<float>> a_, sum_;
};

TEST_F(DeviceTraceGpu, KernelsAndCopiesStandOnTheirStreamsWithTheirOperators) {
  begin();
  if (!trace_->notes().empty()) GTEST_SKIP() << trace_->notes()[0];
  {
    const TraceSpan step(TraceKind::step, "step 1");
    const TraceSpan phase(TraceKind::phase, "layer.0 forward");
    for (int i = 0; i < 3; ++i) add();
    const TraceSpan zero(TraceKind::copy, "zero");
    device().zero(network(), a_->view().data, a_->view().bytes());
  }
  end();
  EXPECT_TRUE(trace_->notes().empty());
  int kernels = 0, fills = 0;
  for (const TraceTask& task : told()) {
    EXPECT_LE(task.begin, task.end);
    EXPECT_GE(task.end, trace_->spans()[0].begin) << "the device's times are not of the trace's clock";
    if (task.kind == TraceKind::kernel) {
      ++kernels;
      EXPECT_EQ(task.stream, "compute") << task.text.name;
      EXPECT_EQ(argument(task, "operator"), "elementwise.add") << task.text.name;
      EXPECT_EQ(argument(task, "phase"), "layer.0 forward");
      EXPECT_FALSE(argument(task, "grid").empty());
      EXPECT_NE(argument(task, "registers"), "0");
      EXPECT_EQ(task.text.name.find("_Z"), std::string::npos) << "not demangled: " << task.text.name;
    } else {
      ++fills;
      EXPECT_EQ(task.stream, "network");
      EXPECT_EQ(task.text.name, "memset");
      EXPECT_EQ(argument(task, "bytes"), std::to_string(elements * 4));
    }
  }
  EXPECT_EQ(kernels, 3);
  EXPECT_EQ(fills, 1);
}

// cuBLASLt launches by the driver, not by the runtime.
TEST_F(DeviceTraceGpu, KernelsOfLibrariesKnowTheirOperatorToo) {
  const TensorView x = a_->view().reshaped({1024, 1024}), y = sum_->view().reshaped({1024, 1024});
  backend_->operators().linear->forward(compute(), {x, x, y});  // chooses its algorithm
  begin();
  if (!trace_->notes().empty()) GTEST_SKIP() << trace_->notes()[0];
  {
    const TraceSpan span(TraceKind::operation, "linear.forward");
    backend_->operators().linear->forward(compute(), {x, x, y});
  }
  end();
  int kernels = 0;
  for (const TraceTask& task : told()) {
    if (task.kind != TraceKind::kernel) continue;
    ++kernels;
    EXPECT_EQ(argument(task, "operator"), "linear.forward") << task.text.name;
    EXPECT_EQ(task.stream, "compute");
  }
  EXPECT_GE(kernels, 1);
}

TEST_F(DeviceTraceGpu, OnlyTheTracedStepIsOnRecordAndStepsFollowEachOther) {
  add();
  for (int step = 1; step <= 2; ++step) {
    trace_ = std::make_shared<Trace>();
    begin();
    if (!trace_->notes().empty()) GTEST_SKIP() << trace_->notes()[0];
    add();
    end();
    EXPECT_EQ(trace_->tasks().size(), 1u) << "step " << step;
    add();
    compute().synchronize();
    EXPECT_EQ(trace_->tasks().size(), 1u) << "step " << step;
  }
}

TEST_F(DeviceTraceGpu, OneRankOfAProcessIsTracedAtATime) {
  begin();
  if (!trace_->notes().empty()) GTEST_SKIP() << trace_->notes()[0];
  cuda::DeviceTrace second(dynamic_cast<cuda::CudaDevice&>(device()));
  Trace other;
  second.begin(other);
  ASSERT_EQ(other.notes().size(), 1u);
  EXPECT_NE(other.notes()[0].find("one rank of a process at a time"), std::string::npos);
  second.end();
  add();
  end();
  EXPECT_EQ(trace_->tasks().size(), 1u);
  EXPECT_TRUE(other.tasks().empty());
}

}  // namespace
}  // namespace ananke::testing
