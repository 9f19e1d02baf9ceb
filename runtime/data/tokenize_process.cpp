#include "runtime/data/tokenize_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/control/socket.h"
#include "runtime/data/tokenizer.h"

namespace ananke {
namespace {

constexpr std::size_t longest_first_line = 256;
constexpr std::size_t read_step = std::size_t{64} << 10;
constexpr off_t last_words = 2000;  // bytes of standard error in a message
constexpr std::uint64_t largest_model = std::uint64_t{1} << 30;

// "ananke-tokenize 1 NAME vocabulary=COUNT eos=ID hash=HEX"
bool parse_first_line(std::string_view line, TokenizerInfo& info) {
  const auto word = [&](std::string_view prefix, auto& out) {
    if (line.substr(0, prefix.size()) != prefix) return false;
    line.remove_prefix(prefix.size());
    const std::string_view value = line.substr(0, line.find(' '));
    line.remove_prefix(std::min(line.size(), value.size() + 1));
    if constexpr (std::is_same_v<decltype(out), std::string&>) {
      out = value;
      return !value.empty();
    } else {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
      return error == std::errc() && end == value.data() + value.size();
    }
  };
  int version = 0;
  return word("ananke-tokenize ", version) && version == 1 && word("", info.name) &&
         word("vocabulary=", info.vocabulary_size) && word("eos=", info.eos_id) && word("hash=", info.hash) &&
         line.empty() && info.vocabulary_size > 0 &&
         info.vocabulary_size <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()) &&
         info.eos_id >= -1 && info.eos_id < static_cast<std::int64_t>(info.vocabulary_size);
}

void append_frame(std::string& out, const void* data, std::size_t count, std::size_t unit) {
  if (count > std::numeric_limits<std::uint32_t>::max()) {
    fail(ErrorKind::data, "a text of {} bytes is too long for a tokenizer", count);
  }
  const auto head = static_cast<std::uint32_t>(count);
  out.append(reinterpret_cast<const char*>(&head), sizeof head);
  out.append(static_cast<const char*>(data), count * unit);
}

}  // namespace

struct TokenizeProcess::State {
  std::filesystem::path program;
  std::chrono::seconds patience;
  TokenizerInfo info;
  Descriptor socket;
  Descriptor errors;
  pid_t pid = -1;
  std::string incoming;   // bytes that came and are not taken yet
  std::size_t taken = 0;  // of them, already used

  ~State() {
    if (pid < 0) return;
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  void start(const std::vector<std::string>& arguments);
  [[noreturn]] void refuse(const std::string& what);
  std::string how_it_ended();
  std::string last_lines() const;
  void move_bytes(std::string_view& out);
  void send(std::string_view out);
  void read_first_line();
  bool frame(std::size_t unit, std::uint64_t most, std::string_view& payload);
  void check_quiet(std::string_view unsent);
};

void TokenizeProcess::State::start(const std::vector<std::string>& arguments) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    fail(ErrorKind::resource, "cannot make a socket for {}: {}", program.string(), std::strerror(errno));
  }
  socket = Descriptor(pair[0]);
  const Descriptor theirs(pair[1]);
  ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  errors = Descriptor(::memfd_create("ananke-tokenize errors", MFD_CLOEXEC));
  if (!errors) fail(ErrorKind::resource, "cannot keep messages of {}: {}", program.string(), std::strerror(errno));
  std::vector<std::string> words = {program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, theirs.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, theirs.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, errors.get(), STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigaddset(&signals, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error = ::posix_spawn(&pid, program.c_str(), &files, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    pid = -1;
    fail(ErrorKind::resource,
         "cannot start the tokenizer {}: {}; it is built beside `ananke`, and ANANKE_TOKENIZE can name another place",
         program.string(), std::strerror(error));
  }
}

std::string TokenizeProcess::State::last_lines() const {
  const off_t size = ::lseek(errors.get(), 0, SEEK_END);
  std::string text(static_cast<std::size_t>(std::clamp<off_t>(size, 0, last_words)), '\0');
  const ssize_t got = ::pread(errors.get(), text.data(), text.size(), std::max<off_t>(0, size - last_words));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (size > last_words) text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Waits up to two seconds: the end of its output may come before its own.
std::string TokenizeProcess::State::how_it_ended() {
  for (int trial = 0; trial < 200; ++trial) {
    int status = 0;
    if (::waitpid(pid, &status, WNOHANG) == pid) {
      pid = -1;
      if (WIFSIGNALED(status)) {
        return fmt::format("was killed by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
      }
      return fmt::format("ended with exit code {}", WEXITSTATUS(status));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return "closed its output";
}

void TokenizeProcess::State::refuse(const std::string& what) {
  const std::string words = last_lines();
  fail(ErrorKind::data, "the tokenizer {} {}{}", program.string(), what,
       words.empty() ? "; it said nothing" : "; its last words:\n  " + words);
}

// Sends what the socket takes and receives what is there; waits until either happens.
void TokenizeProcess::State::move_bytes(std::string_view& out) {
  if (taken > read_step) {
    incoming.erase(0, taken);
    taken = 0;
  }
  pollfd poll{socket.get(), static_cast<short>(out.empty() ? POLLIN : POLLIN | POLLOUT), 0};
  const int wait = patience.count() == 0 ? -1 : static_cast<int>(patience.count() * 1000);
  const int ready = ::poll(&poll, 1, wait);
  if (ready < 0 && errno == EINTR) return;
  if (ready == 0) refuse(fmt::format("(process {}) has not answered for {} s", pid, patience.count()));
  if ((poll.revents & POLLOUT) != 0 && !out.empty()) {
    const ssize_t sent = ::send(socket.get(), out.data(), out.size(), MSG_NOSIGNAL);
    if (sent > 0) out.remove_prefix(static_cast<std::size_t>(sent));
    if (sent < 0 && errno != EAGAIN && errno != EINTR) refuse(how_it_ended());
  }
  if ((poll.revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
    const std::size_t before = incoming.size();
    incoming.resize(before + read_step);
    const ssize_t got = ::recv(socket.get(), incoming.data() + before, read_step, 0);
    const int error = errno;
    incoming.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0 || (got < 0 && error != EAGAIN && error != EINTR)) refuse(how_it_ended());
  }
}

void TokenizeProcess::State::send(std::string_view out) {
  while (!out.empty()) move_bytes(out);
}

void TokenizeProcess::State::read_first_line() {
  std::string_view nothing;
  std::size_t end;
  while ((end = incoming.find('\n')) == std::string::npos && incoming.size() < longest_first_line) move_bytes(nothing);
  const std::string_view line = std::string_view(incoming).substr(0, std::min(end, longest_first_line));
  if (end == std::string::npos || !parse_first_line(line, info)) {
    refuse(fmt::format("began with nonsense: {}", json_quoted(line)));
  }
  taken = end + 1;
}

// The next answer, where it is all there. `most`: units that it may have.
bool TokenizeProcess::State::frame(std::size_t unit, std::uint64_t most, std::string_view& payload) {
  const std::string_view rest = std::string_view(incoming).substr(taken);
  std::uint32_t count = 0;
  if (rest.size() < sizeof count) return false;
  std::memcpy(&count, rest.data(), sizeof count);
  if (count > most) refuse(fmt::format("answered with {} units where {} at most can be", count, most));
  if (rest.size() < sizeof count + count * unit) return false;
  payload = rest.substr(sizeof count, count * unit);
  taken += sizeof count + count * unit;
  return true;
}

// After the last answer: one that came before its question, or without one, would be taken for the next.
void TokenizeProcess::State::check_quiet(std::string_view unsent) {
  if (!unsent.empty() || taken != incoming.size()) refuse("answered what it was not asked");
  incoming.clear();
  taken = 0;
}

TokenizeProcess::TokenizeProcess(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                                 std::chrono::seconds patience)
    : state_(std::make_unique<State>()) {
  state_->program = program;
  state_->patience = patience;
  state_->start(arguments);
  if (std::find(arguments.begin(), arguments.end(), "--train") == arguments.end()) state_->read_first_line();
}

TokenizeProcess::~TokenizeProcess() = default;

const TokenizerInfo& TokenizeProcess::info() const noexcept { return state_->info; }

void TokenizeProcess::encode(std::span<const std::string_view> texts, std::vector<std::int32_t>& tokens,
                             std::vector<std::size_t>& ends) {
  std::string request;
  for (const std::string_view text : texts) append_frame(request, text.data(), text.size(), 1);
  std::string_view out = request;
  for (const std::string_view text : texts) {
    std::string_view answer;
    // A byte makes few tokens; normalisation can make one character 18 (U+FDFA).
    while (!state_->frame(sizeof(std::int32_t), 64 * text.size() + 64, answer)) state_->move_bytes(out);
    const std::size_t begin = tokens.size();
    tokens.resize(begin + answer.size() / sizeof(std::int32_t));
    if (!answer.empty()) std::memcpy(tokens.data() + begin, answer.data(), answer.size());
    for (std::size_t at = begin; at < tokens.size(); ++at) {
      if (tokens[at] < 0 || static_cast<std::uint64_t>(tokens[at]) >= state_->info.vocabulary_size) {
        state_->refuse(
            fmt::format("answered with token {}, of a vocabulary of {}", tokens[at], state_->info.vocabulary_size));
      }
    }
    ends.push_back(tokens.size());
  }
  state_->check_quiet(out);
}

std::string TokenizeProcess::decode(std::span<const std::int32_t> tokens) {
  std::string request;
  append_frame(request, tokens.data(), tokens.size(), sizeof(std::int32_t));
  std::string_view out = request;
  std::string_view answer;
  while (!state_->frame(1, std::uint64_t{65536} * (tokens.size() + 1), answer)) state_->move_bytes(out);
  std::string text(answer);
  state_->check_quiet(out);
  return text;
}

void TokenizeProcess::feed(std::string_view text) {
  std::string request;
  append_frame(request, text.data(), text.size(), 1);
  state_->send(request);
}

std::string TokenizeProcess::train() {
  ::shutdown(state_->socket.get(), SHUT_WR);
  state_->read_first_line();
  std::string_view nothing;
  std::string_view model;
  while (!state_->frame(1, largest_model, model)) state_->move_bytes(nothing);
  return std::string(model);
}

}  // namespace ananke
