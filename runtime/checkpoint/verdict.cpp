#include "runtime/checkpoint/verdict.h"

#include <algorithm>

namespace ananke {

std::string Verdict::encode() const { return std::string{static_cast<char>(kind), static_cast<char>(error)} + text; }

Verdict Verdict::decode(std::string_view blob) {
  ANANKE_CHECK(blob.size() >= 2 && (blob[0] == ok || blob[0] == damaged || blob[0] == refused), "a verdict of {} bytes",
               blob.size());
  return {static_cast<Kind>(blob[0]), static_cast<ErrorKind>(blob[1]), std::string(blob.substr(2))};
}

Verdict Verdict::of_all(std::span<const std::string> blobs) {
  for (const Kind kind : {refused, damaged}) {
    const auto is_kind = [kind](const std::string& blob) { return decode(blob).kind == kind; };
    const auto first = std::find_if(blobs.begin(), blobs.end(), is_kind);
    if (first == blobs.end()) continue;
    Verdict verdict = decode(*first);
    if (std::all_of(blobs.begin(), blobs.end(), [&](const std::string& blob) { return blob == *first; }))
      return verdict;
    const auto others = std::count_if(blobs.begin(), blobs.end(), is_kind) - 1;
    verdict.text = fmt::format("rank {}: {}", first - blobs.begin(), verdict.text);
    if (others > 0) verdict.text += fmt::format(" (and {} more rank{})", others, others == 1 ? "" : "s");
    return verdict;
  }
  return {};
}

}  // namespace ananke
