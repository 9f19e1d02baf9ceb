// Check plugin "gpu_checks": what GPUs do, not what they say of themselves.
#include "plugins/gpu_checks/gpu_checks.h"

#include <algorithm>
#include <cstdlib>

#include "ananke/site.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/health/findings.h"
#include "runtime/health/gpu_reader.h"
#include "runtime/plugin/descriptor.h"

namespace ananke {
namespace gpu_checks {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string entity_of(int gpu) { return fmt::format("gpu{}", gpu); }

// A GPU that others use measures something else, and is no defect.
bool is_used(const CheckContext& context, int gpu) {
  return gpu < context.gpus.gpu_size() && is_used_by_others(context.gpus.gpu(gpu), context.process);
}

// How many GPUs CUDA shows; what is wrong with that is a finding.
int count_gpus(const CheckContext& context, Findings& found) {
  // All of the node, in NVML's order, whatever the job would see.
  unsetenv("CUDA_VISIBLE_DEVICES");
  setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess && result != cudaErrorNoDevice) {
    found.unknown(fmt::format("CUDA does not start: {} ({})", cudaGetErrorName(result), cudaGetErrorString(result)),
                  "see whether driver and CUDA fit together (nvidia-smi)");
    return 0;
  }
  const int expected = static_cast<int>(context.site.hardware().gpus());
  if (count < expected) found.unknown(fmt::format("CUDA shows {} GPUs, and the site has {}", count, expected));
  return count;
}

// Calls work(gpu) for every GPU that nobody else uses; what it throws is that GPU's.
template <class Work>
void on_each(const CheckContext& context, int count, Findings& found, const Work& work) {
  for (int gpu = 0; gpu < count; ++gpu) {
    const bool used = is_used(context, gpu);
    try {
      check(cudaSetDevice(gpu), "use the GPU");
      work(gpu);
    } catch (const Error& error) {
      const std::string text = fmt::format("GPU {}: {}", gpu, error.what());
      used ? found.fail(IN_USE, text + "; others use it (gpu.use)", "wait, or end what uses it")
           : found.fail(DEFECT, text, "reset the GPU; drain the node where that does not help");
    }
  }
}

// Of one measurement. Products are what burns: half a minute on each GPU.
milliseconds length_of(const CheckContext& context, bool burns = false) {
  return context.level != BURN ? milliseconds(400) : burns ? seconds(30) : seconds(2);
}

CheckResult check_context(const CheckContext& context) {
  Findings found(context);
  const int count = count_gpus(context, found);
  on_each(context, count, found, [](int) { use_once(); });
  if (count == 0) return found.skipped("CUDA shows no GPU, and the site expects none");
  return found.result(fmt::format("{} GPUs compute and copy", count));
}

// One value of each GPU that nobody uses, judged by the threshold of its name.
void judge_rate(Findings& found, const Rate& rate, const std::string& entity) {
  found.number(rate.name, entity, rate.value, rate.unit, HealthValue::HIGHER);
  found.judge(rate.name, rate.value, fmt::format("{} of {}: {:.1f} {}", rate.name, entity, rate.value, rate.unit), "",
              DEFECT);
}

std::string range_text(const std::vector<double>& values, const char* unit) {
  const auto [least, most] = std::ranges::minmax_element(values);
  return fmt::format("{:.1f} to {:.1f} {}", *least, *most, unit);
}

template <class Measure>
CheckResult check_rates(const CheckContext& context, const Measure& measure, bool burns) {
  Findings found(context);
  const int count = count_gpus(context, found);
  std::vector<std::string> names, units;
  std::vector<std::vector<double>> values;
  int used = 0;
  on_each(context, count, found, [&](int gpu) {
    if (is_used(context, gpu)) return static_cast<void>(++used);  // its user is not disturbed
    const std::vector<Rate> rates = measure(length_of(context, burns));
    values.resize(rates.size());
    for (std::size_t i = 0; i < rates.size(); ++i) {
      if (names.size() <= i) names.emplace_back(rates[i].name), units.emplace_back(rates[i].unit);
      values[i].push_back(rates[i].value);
      judge_rate(found, rates[i], entity_of(gpu));
    }
  });
  if (count == 0) return found.skipped("CUDA shows no GPU, and the site expects none");
  if (used == count) return found.skipped(fmt::format("others use {} GPUs of {}: not measured", used, count));
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", names[i], range_text(values[i], units[i].c_str()));
  }
  if (used > 0) text += fmt::format("; others use {} GPUs: not measured", used);
  return found.result(text);
}

// Groups of GPUs: every pair, or all.
CheckResult check_gathers(const CheckContext& context, const char* name, bool pairs) {
  Findings found(context);
  const int count = count_gpus(context, found);
  std::vector<std::vector<int>> groups;
  if (pairs) {
    for (int a = 0; a < count; ++a) {
      for (int b = a + 1; b < count; ++b) groups.push_back({a, b});
    }
  } else if (count > 1) {
    groups.emplace_back();
    for (int gpu = 0; gpu < count; ++gpu) groups.back().push_back(gpu);
  }
  if (groups.empty()) return found.skipped(fmt::format("{} GPU: there is no other to talk to", count));
  const auto is_in_use = [&](const std::vector<int>& group) {
    return std::ranges::any_of(group, [&](int gpu) { return is_used(context, gpu); });
  };
  const auto used = std::erase_if(groups, is_in_use);
  if (groups.empty()) return found.skipped("others use a GPU of each group: not measured");
  std::vector<double> rates;
  for (const std::vector<int>& group : groups) {
    std::string entity;
    for (const int gpu : group) entity += (entity.empty() ? "gpu" : "-") + std::to_string(gpu);
    try {
      rates.push_back(gather_rate(group, length_of(context) / (pairs ? 2 : 1), seconds(60)));
      judge_rate(found, {name, rates.back(), "GB/s"}, entity);
    } catch (const Error& error) {
      found.fail(DEFECT, fmt::format("{}: {}", entity, error.what()),
                 "see gpu.nvlink and the kernel's log");
    }
  }
  std::string text = rates.empty() ? "" : fmt::format("all-gather {}", range_text(rates, "GB/s"));
  if (used > 0) text += fmt::format("; others use a GPU of {} groups: not measured", used);
  return found.result(text);
}

CheckThreshold at_least(const char* name, const char* unit, const char* meaning) {
  return {name, unit, true, {}, {}, meaning};
}

struct GpuCheck {
  CheckSpec spec;
  CheckResult (*run)(const CheckContext&);
};

std::vector<GpuCheck> all_checks() {
  return {
      {{.id = "gpu.context",
        .description = "every GPU opens a context, computes, and copies pinned memory both ways",
        .deadline = seconds(16),
        .when_late = FAIL,
        .sensors = {"gpus"}},
       check_context},
      {{.id = "gpu.matmul",
        .description = "products of 8192 x 8192 in bf16, the same bits each time",
        .level = FULL,
        .deadline = seconds(590),
        .when_late = FAIL,
        .thresholds = {at_least("matmul", "TFLOP/s", "of one GPU")},
        .sensors = {"gpus"}},
       [](const CheckContext& context) { return check_rates(context, product_rates, true); }},
      {{.id = "gpu.copy",
        .description = "copies inside of a GPU (read and written), and from and to pinned memory",
        .level = FULL,
        .deadline = seconds(590),
        .when_late = FAIL,
        .thresholds = {at_least("device_to_device", "GB/s", "of one GPU"),
                       at_least("host_to_device", "GB/s", "of one GPU"),
                       at_least("device_to_host", "GB/s", "of one GPU")},
        .sensors = {"gpus"}},
       [](const CheckContext& context) { return check_rates(context, copy_rates, false); }},
      {{.id = "nccl.pairs",
        .description = "all-gather by NCCL of every two GPUs, bytes that each receives",
        .level = FULL,
        .deadline = seconds(590),
        .when_late = FAIL,
        .thresholds = {at_least("pair", "GB/s", "of a pair")},
        .sensors = {"gpus"}},
       [](const CheckContext& context) { return check_gathers(context, "pair", true); }},
      {{.id = "nccl.all",
        .description = "all-gather by NCCL of all GPUs of the node",
        .level = FULL,
        .deadline = seconds(590),
        .when_late = FAIL,
        .thresholds = {at_least("all", "GB/s", "bytes that each GPU receives")},
        .sensors = {"gpus"}},
       [](const CheckContext& context) { return check_gathers(context, "all", false); }},
  };
}

}  // namespace

class GpuChecks final : public Check {
 public:
  explicit GpuChecks(const RoleContext&) : checks_(all_checks()) {}

  std::vector<CheckSpec> checks() const override {
    std::vector<CheckSpec> specs;
    for (const GpuCheck& check : checks_) specs.push_back(check.spec);
    return specs;
  }
  CheckResult run(const std::string& id, const CheckContext& context) override {
    const auto check = std::ranges::find(checks_, id, [](const GpuCheck& one) { return one.spec.id; });
    ANANKE_CHECK(check != checks_.end(), "there is no check '{}'", id);
    return check->run(context);
  }

 private:
  std::vector<GpuCheck> checks_;
};

}  // namespace gpu_checks

ANANKE_PLUGIN(Check, gpu_checks::GpuChecks);

}  // namespace ananke
