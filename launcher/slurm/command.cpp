#include "launcher/slurm/command.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "launcher/worker_process.h"
#include "runtime/base/descriptor.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace ananke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds unkillable(5);  // after which a killed process is left to itself

// Reads what there is; closes at the end.
void drain(Descriptor& from, std::string& text) {
  std::array<char, 65536> bytes;
  const ssize_t got = ::read(from.get(), bytes.data(), bytes.size());
  if (got > 0) {
    text.append(bytes.data(), static_cast<std::size_t>(got));
  } else if (got == 0 || errno != EINTR) {
    from.close();
  }
}

}  // namespace

CommandOutput run_command(const std::vector<std::string>& words, milliseconds deadline,
                          const std::vector<std::pair<std::string, std::string>>& environment,
                          std::size_t most_output) {
  ANANKE_CHECK(!words.empty(), "no command");
  const auto until = Clock::now() + deadline;
  CommandOutput result;
  ProcessSpec spec;
  spec.program = find_program(words[0]);
  spec.arguments = words;
  spec.environment = changed_environment(environment);
  Pipe output, errors;
  spec.output = output.write.get();
  spec.errors = errors.write.get();
  WorkerProcess process(spec);
  output.write.close();
  errors.write.close();
  std::optional<ExitStatus> end;
  std::optional<Clock::time_point> killed;
  for (;;) {
    if (!end) end = process.reap();
    if (end && !output.read && !errors.read) break;
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    std::vector<pollfd> ready;
    if (output.read) ready.push_back({output.read.get(), POLLIN, 0});
    if (errors.read) ready.push_back({errors.read.get(), POLLIN, 0});
    if (!end) ready.push_back({process.descriptor(), POLLIN, 0});
    const long wait = end ? 0 : killed ? 100 : std::max<long>(left, 0);
    const int count = poll(ready.data(), ready.size(), static_cast<int>(wait));
    if (count == 0 && end) break;  // somebody that it left behind keeps a pipe open
    for (const pollfd& one : ready) {
      if (one.revents == 0) continue;
      if (one.fd == output.read.get()) {
        drain(output.read, result.output);
      } else if (one.fd == errors.read.get()) {
        drain(errors.read, result.errors);
      }
    }
    if (end) continue;
    if (killed) {
      if (Clock::now() < *killed + unkillable) continue;
      process.leave();  // it waits for a file system that does not answer, say
      end = ExitStatus{.signal = SIGKILL};
      break;
    }
    result.too_much = result.output.size() + result.errors.size() > most_output;
    result.late = !result.too_much && Clock::now() >= until;
    if (result.too_much || result.late) {
      process.signal(SIGKILL);
      killed = Clock::now();
    }
  }
  result.code = end->signal != 0 ? 128 + end->signal : end->code;
  return result;
}

std::string last_lines_of(const std::string& text, std::size_t count) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  std::string joined;
  for (std::size_t i = lines.size() - std::min(count, lines.size()); i < lines.size(); ++i) {
    joined += (joined.empty() ? "" : " | ") + lines[i];
  }
  return joined;
}

std::string quote_word(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-+=./:,@%") == std::string::npos;
  if (plain) return word;
  std::string text = "'";
  for (char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string quote_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + quote_word(word);
  return text;
}

std::string describe_failure(const std::vector<std::string>& words, const CommandOutput& result,
                             milliseconds deadline) {
  std::string text = fmt::format("`{}` ", quote_words(words));
  text += result.late
              ? fmt::format("did not end within {}", format_duration(std::chrono::duration<double>(deadline).count()))
          : result.too_much ? fmt::format("was killed after it had said {}",
                                          format_bytes(result.output.size() + result.errors.size()))
                            : fmt::format("ended with exit code {}", result.code);
  const std::string lines = last_lines_of(result.errors.empty() ? result.output : result.errors);
  return text + (lines.empty() ? " and said nothing" : ": " + lines);
}

std::string output_of(const std::vector<std::string>& words, milliseconds deadline) {
  CommandOutput result = run_command(words, deadline);
  if (result.late || result.code != 0) {
    fail(result.late ? ErrorKind::stalled : ErrorKind::resource, "{}", describe_failure(words, result, deadline));
  }
  return std::move(result.output);
}

}  // namespace ananke
