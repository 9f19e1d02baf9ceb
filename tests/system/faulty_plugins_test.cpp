// Whatever a stranger's plugin does wrong, the run ends with its role, its name, its file and the method.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>

#include "runtime/base/error.h"
#include "tests/system/command_process.h"

namespace ananke {
namespace {

constexpr const char* job_text = R"(
name: "faulty"
run_dir: "set by the test"
model { vocab_size: 64 hidden_size: 16 num_hidden_layers: 1 num_attention_heads: 2 num_key_value_heads: 2 head_dim: 8
        num_experts: 4 num_experts_per_tok: 2 moe_intermediate_size: 16 tie_word_embeddings: true }
mesh { replicate: 1 shard: 2 }
training { steps: 3 sequence_length: 16 rows_per_step: 4 }
data { generated { documents: 64 shortest: 8 longest: 32 branches: 4 } }
evaluation { held_out { name: "held_out" generated_documents: 8 } }
)";

std::string file_of(const std::string& plugin) { return ANANKE_BINARY_DIR "/tests/faulty_plugins/" + plugin + ".so"; }

struct Fault {
  std::string role, at, fault;
  ErrorKind code;
  std::string words;
  std::string options = "";  // of the plugin's config
  std::string named = "";    // of the method, where it is not `at`; "-": the plugin is not named
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.role << ' ' << fault.at << ' ' << fault.fault; }

class FaultyPlugins : public ::testing::TestWithParam<Fault> {
 protected:
  FaultyPlugins() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ananke-faulty-test.XXXXXX").string();
    folder = mkdtemp(pattern.data());
    setenv("ANANKE_PLUGIN_PATH", ANANKE_BINARY_DIR "/tests/faulty_plugins", 1);
  }
  ~FaultyPlugins() override { std::filesystem::remove_all(folder); }

  // Exit code of a run with the plugin; `plugin` is its entry in the job.
  int run(const std::string& entry, bool hangs) {
    const std::string optimizer = GetParam().role == "optimizer" ? "faulty_optimizer" : "adamw";
    std::ofstream(folder / "job.textproto")
        << job_text << "plugins { " << entry << " }\noptimizer { match: '.*' use: '" << optimizer << "' }\n";
    // Long enough for a busy machine, short where the wait is what is tested.
    std::ofstream(folder / "site.textproto")
        << fmt::format("name: \"test\" start: LOCAL deadlines {{ step: \"{}\" grace: \"1s\" }}", hangs ? "10s" : "60s");
    CommandProcess job({"run", (folder / "job.textproto").string(), "--run-dir", (folder / "run").string(), "--site",
                        (folder / "site.textproto").string()},
                       folder / "output");
    const int code = job.wait();
    output = job.output();
    return code;
  }
  bool says(const std::string& words) const { return output.find(words) != std::string::npos; }

  std::filesystem::path folder;
  std::string output;
};

TEST_P(FaultyPlugins, AreNamed) {
  const Fault& fault = GetParam();
  const std::string plugin = "faulty_" + fault.role;
  std::string message = fault.role;
  message[0] = static_cast<char>(std::toupper(message[0]));
  const std::string entry = fmt::format("config {{ [ananke/ananke.plugin.Faulty{}] {{ at: '{}' fault: '{}' {} }} }}",
                                        message, fault.at, fault.fault, fault.options);
  EXPECT_EQ(run(entry, fault.code == ErrorKind::stalled), static_cast<int>(fault.code)) << output;
  EXPECT_TRUE(says(fault.words)) << output;
  const std::string named = fmt::format("{} plugin '{}' ({})", fault.role, plugin, file_of(plugin));
  if (fault.named == "-") {
    EXPECT_FALSE(says(named)) << output;
  } else {
    EXPECT_TRUE(says(named + ", in " + (fault.named.empty() ? fault.at : fault.named))) << output;
  }
}

std::string name_of_case(const ::testing::TestParamInfo<Fault>& one) {
  std::string name = one.param.role + "_" + one.param.at + "_" + one.param.fault +
                     (one.param.options.empty() ? "" : "_" + one.param.options);
  std::erase_if(name, [](char c) { return c == ':'; });
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

// What can be done wrong in any method.
std::vector<Fault> anything_in(const std::string& role, const std::string& method, const std::string& options = "") {
  const std::string inside = "inside " + role + " plugin";
  return {
      {role, method, "throw", ErrorKind::plugin, method + ": a word of its own", options},
      {role, method, "error", ErrorKind::data, method + ": a word of its own", options},
      {role, method, "int", ErrorKind::plugin, "no std::exception", options},
      {role, method, "segv", ErrorKind::worker_failed, "SIGSEGV): " + inside, options},
      {role, method, "overflow", ErrorKind::worker_failed, "SIGSEGV): " + inside, options},
      {role, method, "abort", ErrorKind::worker_failed, "SIGABRT): " + inside, options},
      {role, method, "hang", ErrorKind::stalled, " s " + inside, options},
  };
}

std::vector<Fault> all_of(std::vector<std::vector<Fault>> lists) {
  std::vector<Fault> all;
  for (auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

const std::vector<Fault> optimizer_faults = all_of({
    anything_in("optimizer", "update"),
    anything_in("optimizer", "update", "on_stream: true"),
    {
        {"optimizer", "update", "exit", ErrorKind::worker_failed, "code 3 without having finished: inside optimizer"},
        {"optimizer", "update", "hang", ErrorKind::stalled, "rank 1 ", "rank: 1"},
        // A crash says itself where it was: the launcher may not have heard it.
        {"optimizer", "update", "segv", ErrorKind::worker_failed, "(phase 'step', step 1)", "rank: 1"},
        {"optimizer", "update", "hang", ErrorKind::stalled, "rank 1 ", "rank: 1 on_stream: true"},
        {"optimizer", "update", "peer_lost", ErrorKind::worker_failed, "rank 3 is gone", "", "-"},
        {"optimizer", "update", "nan", ErrorKind::numeric,
         "element 0, is nan; optimizer plugin 'faulty_optimizer' updates it", "", "-"},
        {"optimizer", "update", "wild view", ErrorKind::worker_failed,
         "in adamw.update, called by optimizer plugin 'faulty_optimizer'"},
        {"optimizer", "update", "short view", ErrorKind::plugin,
         "in adamw.update, called by optimizer plugin 'faulty_optimizer'"},
        {"optimizer", "constructor", "throw", ErrorKind::plugin, "constructor: a word of its own", "",
         "its constructor"},
        {"optimizer", "constructor", "error", ErrorKind::data, "constructor: a word of its own", "", "its constructor"},
        {"optimizer", "constructor", "int", ErrorKind::plugin, "no std::exception", "", "its constructor"},
        {"optimizer", "constructor", "segv", ErrorKind::worker_failed, "SIGSEGV): inside", "", "its constructor"},
        {"optimizer", "constructor", "hang", ErrorKind::stalled, "(phase 'loading plugins')", "", "its constructor"},
        {"optimizer", "destructor", "throw", ErrorKind::worker_failed, "SIGABRT", "", "its destructor"},
        {"optimizer", "layout", "unknown", ErrorKind::plugin, "needs layout 7"},
        {"optimizer", "states", "no name", ErrorKind::plugin, "a state named ''"},
        {"optimizer", "states", "same name", ErrorKind::plugin, "a state named 'a'"},
        {"optimizer", "learning_rate", "nan", ErrorKind::plugin, "it is nan"},
    },
});

const std::vector<Fault> data_faults = {
    {"batches", "next", "throw", ErrorKind::plugin, "next: a word of its own"},
    {"batches", "next", "segv", ErrorKind::worker_failed, "SIGSEGV): inside batches plugin"},
    {"batches", "next", "hang", ErrorKind::stalled, " s inside batches plugin"},
    {"batches", "position", "throw", ErrorKind::plugin, "position: a word of its own"},
    {"batches", "next", "no rows", ErrorKind::plugin, "0 rows of 0 tokens and says that its source has ended"},
    {"batches", "next", "short targets", ErrorKind::plugin, "have 32 tokens, 1 targets"},
    {"batches", "next", "foreign token", ErrorKind::plugin, "token 1000000, target 2 (vocabulary 64)"},
    {"batches", "next", "wrong count", ErrorKind::plugin, "33 targets are valid, but 32 are"},
    {"batches", "next", "no segment", ErrorKind::plugin, "segments of row 0"},
};

const std::vector<Fault> expert_faults = {
    {"experts", "begin", "throw", ErrorKind::plugin, "begin: a word of its own"},
    {"experts", "dispatch_backward_end", "segv", ErrorKind::worker_failed, "SIGSEGV): inside experts",
     "on_stream: true"},
    {"experts", "begin", "hang", ErrorKind::stalled, " s inside experts plugin"},
    {"experts", "capacity", "negative", ErrorKind::plugin, "-1 rows"},
    {"experts", "workspace", "huge", ErrorKind::plugin, "1152921504606846976 bytes"},
    {"experts", "chunks", "none", ErrorKind::plugin, "a microbatch of 0 chunks"},
    {"experts", "plan", "no purpose", ErrorKind::plugin, "give every line a purpose"},
    {"experts", "dispatch_end", "short chunk", ErrorKind::plugin, "called by experts plugin 'faulty_experts'"},
};

const std::vector<Fault> parameter_faults = all_of({
    anything_in("parameters", "acquire"),
    {
        {"parameters", "reduce", "throw", ErrorKind::plugin, "reduce: a word of its own", "on_stream: true"},
        {"parameters", "reduce", "segv", ErrorKind::worker_failed, "SIGSEGV): inside parameters", "on_stream: true"},
        {"parameters", "start", "throw", ErrorKind::plugin, "start: a word of its own", "rank: 1"},
        {"parameters", "finish", "hang", ErrorKind::stalled, "rank 0 ", "rank: 0 on_stream: true"},
        {"parameters", "fragments", "few", ErrorKind::plugin, "but the placement has"},
        {"parameters", "fragments", "other place", ErrorKind::plugin, "number 0 is elements"},
        {"parameters", "fragments", "short", ErrorKind::plugin, "a weight's view is f32 [1], it must be f32 with"},
        {"parameters", "fragments", "no gradient", ErrorKind::plugin, "without memory"},
        {"parameters", "acquire", "short", ErrorKind::plugin, "the weights' view is f32 [1], it must be f32 with"},
        {"parameters", "acquire", "integers", ErrorKind::plugin, "the weights' view is i32"},
        {"parameters", "acquire", "nothing", ErrorKind::plugin, "the weights' view of unit 0 is not given"},
        {"parameters", "traffic", "no axis", ErrorKind::plugin, "names no axis"},
    },
});

const std::vector<Fault> activation_faults = all_of({
    anything_in("activations", "take"),
    {
        {"activations", "place", "throw", ErrorKind::plugin, "place: a word of its own", "on_stream: true"},
        {"activations", "plan", "no purpose", ErrorKind::plugin, "give every line a purpose"},
        {"activations", "plan", "huge", ErrorKind::plugin, "it plans 1152921504606846976 bytes for 'block inputs'"},
        {"activations", "place", "nothing", ErrorKind::plugin, "it gives no memory for block"},
        {"activations", "take", "nothing", ErrorKind::plugin, "it gives no memory for block"},
    },
});

const std::vector<Fault> backend_faults = all_of({
    anything_in("backend", "linear.forward"),
    {
        {"backend", "linear.forward", "throw", ErrorKind::plugin, "linear.forward: a word of", "on_stream: true"},
        {"backend", "linear.forward", "segv", ErrorKind::worker_failed, "SIGSEGV): inside", "on_stream: true"},
        {"backend", "linear.forward", "overflow", ErrorKind::worker_failed, "SIGSEGV): inside", "on_stream: true"},
        {"backend", "linear.forward", "hang", ErrorKind::stalled, "rank 1 ", "on_stream: true rank: 1"},
        {"backend", "device", "throw", ErrorKind::plugin, "a word of its own"},
        {"backend", "operators", "few", ErrorKind::plugin, "some operator is missing"},
        {"backend", "router.saved", "huge", ErrorKind::plugin, "1152921504606846976 bytes make no sense"},
        {"backend", "make_communicator", "nothing", ErrorKind::plugin, "rank -1 of 0"},
        {"backend", "make_communicator", "lonely", ErrorKind::plugin, "rank 0 of 1"},
        {"backend", "make_communicator", "hang", ErrorKind::stalled, "rank 1 ", "rank: 1"},
    },
});

const std::vector<Fault> observer_faults = {
    {"observer", "on_step", "segv", ErrorKind::worker_failed, "SIGSEGV): inside observer plugin"},
    {"observer", "on_step", "overflow", ErrorKind::worker_failed, "SIGSEGV): inside observer plugin"},
    {"observer", "on_event", "abort", ErrorKind::worker_failed, "SIGABRT): inside observer plugin"},
    {"observer", "on_step", "hang", ErrorKind::stalled, "rank 0 "},
    {"observer", "constructor", "throw", ErrorKind::plugin, "constructor: a word of its own", "", "its constructor"},
};

INSTANTIATE_TEST_SUITE_P(Optimizers, FaultyPlugins, ::testing::ValuesIn(optimizer_faults), name_of_case);
INSTANTIATE_TEST_SUITE_P(Batches, FaultyPlugins, ::testing::ValuesIn(data_faults), name_of_case);
INSTANTIATE_TEST_SUITE_P(Experts, FaultyPlugins, ::testing::ValuesIn(expert_faults), name_of_case);
INSTANTIATE_TEST_SUITE_P(Parameters, FaultyPlugins, ::testing::ValuesIn(parameter_faults), name_of_case);
INSTANTIATE_TEST_SUITE_P(Activations, FaultyPlugins, ::testing::ValuesIn(activation_faults), name_of_case);
INSTANTIATE_TEST_SUITE_P(Backends, FaultyPlugins, ::testing::ValuesIn(backend_faults), name_of_case);
INSTANTIATE_TEST_SUITE_P(Observers, FaultyPlugins, ::testing::ValuesIn(observer_faults), name_of_case);

class FaultyObservers : public FaultyPlugins {};

// The run goes on without it.
TEST_P(FaultyObservers, AreWarnedOfAndCalledNoMore) {
  const Fault& fault = GetParam();
  const std::string entry = fmt::format("config {{ [ananke/ananke.plugin.FaultyObserver] {{ at: '{}' fault: '{}' }} }}",
                                        fault.at, fault.fault);
  EXPECT_EQ(run(entry, false), 0) << output;
  const std::string log = text_of(folder / "run/logs/rank-0.log");
  const std::string blame = fmt::format("observer plugin 'faulty_observer' ({}), in {}: {}", file_of("faulty_observer"),
                                        fault.at, fault.words);
  const auto first = log.find(blame);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(blame, first + 1), std::string::npos) << log;
}

const Fault observer_exceptions[] = {
    {"observer", "on_step", "throw", ErrorKind::plugin, "a word of its own"},
    {"observer", "on_step", "error", ErrorKind::plugin, "a word of its own"},
    {"observer", "on_event", "int", ErrorKind::plugin, "it threw something that is no std::exception"},
    {"observer", "on_evaluation", "throw", ErrorKind::plugin, "a word of its own"},
};
INSTANTIATE_TEST_SUITE_P(Exceptions, FaultyObservers, ::testing::ValuesIn(observer_exceptions), name_of_case);

class FaultyLoading : public FaultyPlugins {};

TEST_P(FaultyLoading, IsNamed) {
  const Fault& fault = GetParam();
  const std::string plugin = "loading_" + fault.fault;
  EXPECT_EQ(run("use: '" + plugin + "'", fault.code == ErrorKind::stalled), static_cast<int>(fault.code)) << output;
  EXPECT_TRUE(says(fault.words)) << output;
  EXPECT_TRUE(says(file_of(plugin))) << output;
}

const Fault loading_faults[] = {
    {"observer", "", "throw", ErrorKind::worker_failed, "SIGABRT): inside observer plugin 'loading_throw'"},
    {"observer", "", "segv", ErrorKind::worker_failed, "SIGSEGV): inside observer plugin 'loading_segv'"},
    {"observer", "", "exit", ErrorKind::worker_failed, "code 3 without having finished: inside observer plugin"},
    {"observer", "", "hang", ErrorKind::stalled, " s inside observer plugin 'loading_hang'"},
    {"observer", "", "missing", ErrorKind::plugin, "ananke::function_that_nobody_has(int)"},
};
INSTANTIATE_TEST_SUITE_P(Faults, FaultyLoading, ::testing::ValuesIn(loading_faults), name_of_case);

}  // namespace
}  // namespace ananke
