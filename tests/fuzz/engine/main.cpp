// Drives one reader, LLVMFuzzerTestOneInput, over seeds and inputs made of them; see tests/fuzz/README.md.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "runtime/base/hash.h"
#include "tests/fuzz/engine/coverage.h"
#include "tests/fuzz/engine/limits.h"
#include "tests/fuzz/engine/mutator.h"

extern "C" {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// A reader may have its own way of making inputs, with LLVMFuzzerMutate below as the ordinary one.
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed)
    __attribute__((weak));
}

namespace ananke::fuzz {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* usage =
    R"(usage: fuzz_READER [--executions N] [--seed N] [--longest BYTES] [--dictionary FILE] [--faults FOLDER]
                   [--corpus FOLDER] [--blocks FILE] FILE|FOLDER...
Reads every file, then --executions inputs made of them. Ends with 1 at the first fault and leaves its input in --faults.
--corpus keeps the inputs that reached something new, --blocks the addresses of all basic blocks that were reached.
)";

struct Options {
  std::uint64_t executions = 0;
  std::uint64_t seed = 1;
  std::size_t longest = 4096;
  std::string dictionary;
  std::string faults = ".";
  std::string corpus;
  std::string blocks;
  std::vector<fs::path> seeds;
};

[[noreturn]] void refuse(const std::string& what) {
  fmt::print(stderr, "{}\n{}", what, usage);
  std::exit(2);
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(path.string() + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--")) {
      options.seeds.emplace_back(word);
      continue;
    }
    if (i + 1 == argc) refuse(word + " needs a value");
    const std::string value = argv[++i];
    const auto number = [&] {
      const bool good =
          !value.empty() && value.size() < 19 && value.find_first_not_of("0123456789") == std::string::npos;
      return good ? std::stoull(value) : (refuse(fmt::format("{} {}: a whole number is needed", word, value)), 0);
    };
    if (word == "--executions")
      options.executions = number();
    else if (word == "--seed")
      options.seed = number();
    else if (word == "--longest")
      options.longest = number();
    else if (word == "--dictionary")
      options.dictionary = value;
    else if (word == "--faults")
      options.faults = value;
    else if (word == "--corpus")
      options.corpus = value;
    else if (word == "--blocks")
      options.blocks = value;
    else
      refuse("there is no option " + word);
  }
  if (options.seeds.empty()) refuse("name seeds");
  return options;
}

std::vector<std::string> read_seeds(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    std::vector<fs::path> inside;
    for (const auto& entry : fs::directory_iterator(path)) inside.push_back(entry.path());
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  std::vector<std::string> seeds;
  for (const fs::path& file : files) seeds.push_back(read_file(file));
  if (seeds.empty()) refuse("there are no seeds");
  return seeds;
}

std::string current;       // the input that is being read
std::string fault_folder;  // where it goes when it is a fault

void save_fault() {
  const std::string file = fmt::format("{}/fault-{:.12}", fault_folder, hash_hex(current));
  std::ofstream(file, std::ios::binary) << current;
  fmt::print(stderr, "fault: {} bytes of input are in {}\n", current.size(), file);
}

struct Entry {
  std::string input;
  std::vector<Compared> compared;
};

// For LLVMFuzzerMutate.
Mutator* ordinary = nullptr;
const Entry* one_parent = nullptr;
const Entry* other_parent = nullptr;

class Campaign {
 public:
  explicit Campaign(const Options& options)
      : options_(options),
        mutator_(
            options.seed,
            options.dictionary.empty() ? std::vector<std::string>{} : parse_dictionary(read_file(options.dictionary)),
            options.longest) {
    ordinary = &mutator_;
  }
  void run(std::vector<std::string> seeds);
  void report(const char* name) const;

 private:
  void execute(bool keep);
  void make_input();
  const Entry& choose();

  const Options& options_;
  Mutator mutator_;
  std::vector<Entry> corpus_;
  std::uint64_t executions_ = 0;
  std::size_t seeds_ = 0;
  Clock::duration slowest_{};
  Clock::time_point started_ = Clock::now();
};

// `current` moves to memory of its exact size, so that reading past its end is seen.
void Campaign::execute(bool keep) {
  const std::vector<std::uint8_t> exact(current.begin(), current.end());
  const auto before = Clock::now();
  begin_execution(exact.size());
  begin_recording();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  end_recording();
  end_execution();
  slowest_ = std::max(slowest_, Clock::now() - before);
  ++executions_;
  const bool fresh = harvest() > 0;
  if (!fresh && !keep) return;
  corpus_.push_back({current, compared()});
  if (!options_.corpus.empty() && !keep) {
    std::ofstream(fmt::format("{}/{:.12}", options_.corpus, hash_hex(current)), std::ios::binary) << current;
  }
}

// Half the time one of the newest eighth, where there is most to find.
const Entry& Campaign::choose() {
  Random& random = mutator_.random();
  const std::size_t newest = corpus_.size() / 8 + 1;
  return corpus_[random.one_in(2) ? corpus_.size() - 1 - random.below(newest) : random.below(corpus_.size())];
}

void Campaign::make_input() {
  one_parent = &choose();
  other_parent = &choose();
  current = one_parent->input;
  const bool custom = LLVMFuzzerCustomMutator != nullptr && !mutator_.random().one_in(8);
  if (!custom) return mutator_.mutate(current, other_parent->input, one_parent->compared);
  const std::size_t size = std::min(current.size(), options_.longest);
  current.resize(options_.longest);
  const auto seed = static_cast<unsigned>(mutator_.random().next());
  current.resize(LLVMFuzzerCustomMutator(reinterpret_cast<std::uint8_t*>(current.data()), size, current.size(), seed));
}

void Campaign::run(std::vector<std::string> seeds) {
  seeds_ = seeds.size();
  for (std::string& seed : seeds) {
    current = std::move(seed);
    execute(true);
  }
  for (std::uint64_t i = 0; i < options_.executions; ++i) {
    make_input();
    execute(false);
  }
}

void Campaign::report(const char* name) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds_of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  fmt::print(
      "{}: {} executions without a fault in {:.1f} s ({:.1f} s of processor time), {} seeds, {} inputs kept, "
      "{} basic blocks, at most {:.1f} MiB and {:.1f} ms\n",
      fs::path(name).filename().string(), executions_, seconds, seconds_of(used.ru_utime) + seconds_of(used.ru_stime),
      seeds_, corpus_.size() - seeds_, blocks_reached(), static_cast<double>(most_memory()) / 0x1p20,
      std::chrono::duration<double, std::milli>(slowest_).count());
  if (!options_.blocks.empty()) std::ofstream(options_.blocks) << block_addresses();
}

}  // namespace
}  // namespace ananke::fuzz

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most) {
  using namespace ananke::fuzz;
  std::string input(reinterpret_cast<const char*>(data), size);
  ordinary->mutate(input, other_parent->input, one_parent->compared);
  input.resize(std::min(input.size(), most));
  std::copy(input.begin(), input.end(), data);
  return input.size();
}

int main(int argc, char** argv) {
  using namespace ananke::fuzz;
  const Options options = parse_options(argc, argv);
  fault_folder = options.faults;
  for (const std::string& folder : {options.faults, options.corpus}) {
    if (!folder.empty()) std::filesystem::create_directories(folder);
  }
  std::vector<std::string> seeds = read_seeds(options.seeds);
  on_fault(save_fault);
  watch_time();
  Campaign campaign(options);
  campaign.run(std::move(seeds));
  campaign.report(argv[0]);
  return 0;
}
