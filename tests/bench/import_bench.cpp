// Import speed: megabytes of text a second and core. Run by hand: build/tests/import_bench [FILE-OR-FOLDER [MEGABYTES]]
// Without a file, text is made up: words of a Zipf-like distribution, in lines and paragraphs.
// "a core": by the processor time of all threads and of ananke-tokenize, so that a busy machine does not blur it.
// "idle": how much of the time that a busy machine would have given it ananke-tokenize had nothing to do.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "runtime/data/import_documents.h"
#include "runtime/data/input_file.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

double processor_seconds() {
  double total = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    ::getrusage(who, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime}) {
      total += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    }
  }
  return total;
}

double peak_mib() {
  rusage self{}, children{};
  ::getrusage(RUSAGE_SELF, &self);
  ::getrusage(RUSAGE_CHILDREN, &children);
  return static_cast<double>(std::max(self.ru_maxrss, children.ru_maxrss)) / 1024;
}

// Looks at what the scheduler says of this process's children: how long they ran, and how long they could have.
class ChildWatch {
 public:
  // Share of the children's time in which they neither ran nor waited for a processor.
  double idle() {
    thread_.request_stop();
    thread_.join();
    double idle = 0, runnable = 0;
    for (const auto& [child, seen] : children_) {
      idle += seen.last.wall - seen.first.wall - (seen.last.run - seen.first.run) - (seen.last.wait - seen.first.wait);
      runnable += seen.last.run - seen.first.run;
    }
    return runnable > 0 ? std::max(0.0, idle) / (idle + runnable) : 0;
  }

 private:
  struct Times {
    double wall = 0, run = 0, wait = 0;  // seconds
  };
  struct Seen {
    Times first, last;
  };
  void look() {
    const std::string self = "/proc/self/task";
    std::error_code gone;
    for (const auto& task : fs::directory_iterator(self, gone)) {
      std::ifstream children(task.path() / "children");
      for (int child = 0; children >> child;) {
        std::ifstream file(fmt::format("/proc/{}/schedstat", child));
        double run = 0, wait = 0;
        if (!(file >> run >> wait)) continue;
        const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
        const Times times{now, 1e-9 * run, 1e-9 * wait};
        children_.try_emplace(child, Seen{times, times}).first->second.last = times;
      }
    }
  }

  std::map<int, Seen> children_;
  std::jthread thread_{[this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      look();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }};
};

std::string made_up_text(std::size_t bytes) {
  const RandomKey key(1, "import bench");
  std::string text;
  for (std::uint64_t i = 0; text.size() < bytes; ++i) {
    auto rank = static_cast<std::uint64_t>(std::exp(12 * key.uniform(2 * i)));  // Zipf's law to 160 thousand words
    do text += static_cast<char>('a' + (rank * 7 + 4) % 26);
    while ((rank /= 3) > 0);
    text += key.below(2 * i + 1, 12) == 0 ? '\n' : ' ';
  }
  return text;
}

std::string text_of(const fs::path& source, std::size_t bytes) {
  std::string text;
  for (const TextFile& file : text_files(source, ImportFormat::text)) {
    InputFile input(file.path);
    const std::size_t before = text.size();
    text.resize(bytes);
    text.resize(before + input.read(text.data() + before, bytes - before));
    if (text.size() == bytes) break;
  }
  return text;
}

// 20 KB documents, as JSON lines and as one text file.
void write_inputs(const fs::path& folder, const std::string& text) {
  std::ofstream(folder / "text.txt", std::ios::binary) << text;
  std::ofstream lines(folder / "lines.jsonl", std::ios::binary);
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = text.find('\n', std::min(text.size(), begin + 20000));
    end = end == std::string::npos ? text.size() : end + 1;
    lines << "{\"id\": " << begin << ", \"text\": " << json_quoted(text.substr(begin, end - begin)) << "}\n";
    begin = end;
  }
}

void measure(const char* name, const fs::path& input, const std::string& tokenizer, int jobs) {
  ImportOptions options;
  options.sources.push_back({input, std::nullopt});
  options.tokenizer = tokenizer;
  options.jobs = jobs;
  ChildWatch watch;
  const double processor = processor_seconds();
  const auto begin = std::chrono::steady_clock::now();
  const ImportResult result = import_documents(options, input.parent_path() / "out.h5");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double megabytes = static_cast<double>(result.bytes) * 1e-6;
  const double used = processor_seconds() - processor, idle = watch.idle();
  std::printf(
      "%-28s jobs %d  %7.2f MB  %6.2f s  %7.2f MB/s  %7.2f MB/s a core  %.2f bytes/token  idle %3.0f %%  peak %.0f "
      "MiB\n",
      name, jobs, megabytes, seconds, megabytes / seconds, megabytes / used,
      static_cast<double>(result.bytes) / static_cast<double>(result.tokens), 100 * idle, peak_mib());
  std::fflush(stdout);
}

void run(int argc, char** argv) {
  const std::size_t bytes = static_cast<std::size_t>(argc > 2 ? std::atoi(argv[2]) : 32) * 1000000;
  std::string pattern = (fs::temp_directory_path() / "ananke-import-bench-XXXXXX").string();
  const fs::path folder = ::mkdtemp(pattern.data());
  try {
    write_inputs(folder, argc > 1 ? text_of(argv[1], bytes) : made_up_text(bytes));
    measure("bytes, text", folder / "text.txt", "bytes", 1);
    measure("bytes, JSON lines", folder / "lines.jsonl", "bytes", 1);
    for (const char* type : {"bpe", "unigram"}) {
      ImportOptions options;
      options.sources.push_back({folder / "text.txt", std::nullopt});
      const fs::path model = folder / (std::string(type) + ".model");
      train_tokenizer(options, {8000, type, std::uint64_t{4} << 20}, model);
      const std::string name = std::string("SentencePiece 8000 ") + type;
      for (const int jobs : {1, 2}) measure(name.c_str(), folder / "text.txt", model.string(), jobs);
    }
  } catch (...) {
    fs::remove_all(folder);
    throw;
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace ananke

int main(int argc, char** argv) {
  try {
    ananke::run(argc, argv);
    return 0;
  } catch (const ananke::Error& error) {
    std::fprintf(stderr, "import_bench: %s\n", error.what());
    return static_cast<int>(error.kind());
  }
}
