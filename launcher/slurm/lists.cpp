#include "launcher/slurm/lists.h"

#include <charconv>
#include <optional>

#include "runtime/base/error.h"

namespace ananke {
namespace {

constexpr std::size_t most = 1'000'000;

[[noreturn]] void refuse(const std::string& what, std::string_view text, const std::string& why,
                         const char* example = "node[0-3,7],login") {
  fail(ErrorKind::config, "{} is '{}': {}; correct or unset it: expected is a text such as '{}'", what, text, why,
       example);
}

std::optional<long> number(std::string_view digits) {
  long value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || value < 0) return {};
  return value;
}

// One piece of a name: a text, or the numbers of a pair of brackets.
using Piece = std::vector<std::string>;

class HostListReader {
 public:
  HostListReader(const std::string& what, std::string_view text) : what_(what), text_(text) {}

  std::vector<std::string> read() {
    std::vector<std::string> names;
    while (at_ < text_.size()) {
      std::vector<Piece> pieces;
      while (at_ < text_.size() && text_[at_] != ',') pieces.push_back(text_[at_] == '[' ? brackets() : plain());
      if (pieces.empty()) refuse(what_, text_, fmt::format("there is no name at character {}", at_ + 1));
      append(pieces, names);
      if (at_ < text_.size() && ++at_ == text_.size()) refuse(what_, text_, "it ends with a comma");
    }
    return names;
  }

 private:
  Piece plain() {
    const std::size_t begin = at_;
    at_ = std::min(text_.find_first_of(",[]", at_), text_.size());
    if (at_ == begin) refuse(what_, text_, fmt::format("']' without '[' at character {}", at_ + 1));
    return {std::string(text_.substr(begin, at_ - begin))};
  }

  Piece brackets() {
    const std::size_t open = at_, close = text_.find(']', at_);
    if (close == std::string_view::npos) refuse(what_, text_, fmt::format("no ']' to '[' at character {}", open + 1));
    at_ = close + 1;
    Piece numbers;
    std::string_view rest = text_.substr(open + 1, close - open - 1);
    for (bool more = true; more;) {
      const std::size_t comma = rest.find(',');
      more = comma != std::string_view::npos;
      range(rest.substr(0, comma), numbers);
      if (more) rest.remove_prefix(comma + 1);
    }
    return numbers;
  }

  void range(std::string_view item, Piece& numbers) const {
    const std::size_t dash = item.find('-');
    const std::string_view low = item.substr(0, dash);
    const auto first = number(low);
    const auto last = dash == std::string_view::npos ? first : number(item.substr(dash + 1));
    if (!first || !last || *last < *first) refuse(what_, text_, fmt::format("'{}' is no range of numbers", item));
    if (static_cast<std::size_t>(*last - *first) >= most - numbers.size()) refuse_size();
    for (long value = *first; value <= *last; ++value) {
      numbers.push_back(fmt::format("{:0{}}", value, static_cast<int>(low.size())));
    }
  }

  void append(const std::vector<Piece>& pieces, std::vector<std::string>& names) const {
    std::vector<std::string> made{""};
    for (const Piece& piece : pieces) {
      if (made.size() * piece.size() > most - names.size()) refuse_size();
      std::vector<std::string> longer;
      for (const std::string& begin : made) {
        for (const std::string& end : piece) longer.push_back(begin + end);
      }
      made = std::move(longer);
    }
    names.insert(names.end(), made.begin(), made.end());
  }

  [[noreturn]] void refuse_size() const { refuse(what_, text_, fmt::format("more than {} names", most)); }

  const std::string& what_;
  const std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<std::string> parse_host_list(const std::string& what, std::string_view text) {
  return HostListReader(what, text).read();
}

std::vector<int> parse_counts(const std::string& what, std::string_view text) {
  std::vector<int> counts;
  for (std::string_view rest = text; !rest.empty() || counts.empty();) {
    std::string_view item = rest.substr(0, rest.find(','));
    const bool more = item.size() < rest.size();
    rest.remove_prefix(item.size() + (more ? 1 : 0));
    std::optional<long> times = 1;
    if (const auto open = item.find("(x"); open != std::string_view::npos && item.ends_with(')')) {
      times = number(item.substr(open + 2, item.size() - open - 3));
      item = item.substr(0, open);
    }
    const auto count = number(item);
    if (!count || *count > 1 << 24 || !times || *times < 1 || (more && rest.empty()) ||
        static_cast<std::size_t>(*times) > most - counts.size()) {
      refuse(what, text, "it is no number for each node", "72(x3),36");
    }
    counts.insert(counts.end(), static_cast<std::size_t>(*times), static_cast<int>(*count));
  }
  return counts;
}

}  // namespace ananke
