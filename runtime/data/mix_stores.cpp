#include "runtime/data/mix_stores.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/replace_file.h"

namespace ananke {
namespace {

constexpr std::size_t tokens_at_once = std::size_t{256} << 10;

// In the folder of the store, where there is room for data.
FileHandle nameless_file(const std::filesystem::path& beside) {
  std::string name = (beside.parent_path() / ".bytes.XXXXXX").string();
  const int file = ::mkstemp(name.data());
  if (file >= 0) ::unlink(name.c_str());
  FileHandle handle(file < 0 ? nullptr : ::fdopen(file, "w+b"), std::fclose);
  if (!handle) fail(ErrorKind::resource, "cannot make a temporary file {}: {}", name, std::strerror(errno));
  return handle;
}

}  // namespace

StoreSink::StoreSink(const std::filesystem::path& path, const std::string& tokenizer, const std::string& tokenizer_hash,
                     std::int64_t eos_id, std::uint64_t vocabulary_size, bool keep_bytes)
    : writer_(path, tokenizer, tokenizer_hash, eos_id, vocabulary_size),
      document_bytes_(keep_bytes ? nameless_file(path) : FileHandle(nullptr, std::fclose)) {}

void StoreSink::append(std::span<const std::int32_t> tokens, std::uint64_t text_bytes) {
  writer_.append(tokens);
  tokens_ += tokens.size();
  text_bytes_ += text_bytes;
}

void StoreSink::end_document() {
  writer_.end_document();
  ++documents_;
  const std::uint64_t tokens = tokens_ - counted_tokens_;
  counted_tokens_ = tokens_;
  if (tokens > 1) targets_ += tokens - 1;
  const std::uint64_t bytes = text_bytes_ - counted_bytes_;
  counted_bytes_ = text_bytes_;
  if (document_bytes_ && std::fwrite(&bytes, sizeof bytes, 1, document_bytes_.get()) != 1) {
    fail(ErrorKind::resource, "cannot write a temporary file: {}", std::strerror(errno));
  }
}

void StoreSink::finish(const std::string& source, const std::string& source_hash) {
  writer_.finish(source, source_hash, text_bytes_);
}

FileHandle StoreSink::take_document_bytes() { return std::move(document_bytes_); }

MixedSource::MixedSource(std::filesystem::path path, double weight, const std::filesystem::path& store,
                         FileHandle document_bytes)
    : path_(std::move(path)), weight_(weight), store_(store), document_bytes_(std::move(document_bytes)) {
  ::unlink(store.c_str());
}

std::vector<bool> MixedSource::choose(std::uint64_t tokens, const RandomKey& order) const {
  std::vector<bool> chosen(documents());
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; sum < tokens && i < documents(); ++i) {
    const std::uint64_t document = permuted(order, documents(), i);
    chosen[document] = true;
    sum += store_.length(document);
  }
  return chosen;
}

void MixedSource::write(const std::vector<bool>* chosen, StoreSink& sink,
                        const std::function<void(std::uint64_t)>& each) {
  std::vector<std::int32_t> tokens;
  std::rewind(document_bytes_.get());
  for (std::uint64_t document = 0; document < documents(); ++document) {
    std::uint64_t bytes = 0;
    if (std::fread(&bytes, sizeof bytes, 1, document_bytes_.get()) != 1) {
      fail(ErrorKind::resource, "cannot read a temporary file: {}", std::strerror(errno));
    }
    if (chosen != nullptr && !(*chosen)[document]) continue;
    const std::uint64_t length = store_.length(document);
    for (std::uint64_t begin = 0; begin < length; begin += tokens_at_once) {
      tokens.resize(static_cast<std::size_t>(std::min<std::uint64_t>(tokens_at_once, length - begin)));
      store_.read(document, begin, tokens);
      sink.append(tokens, begin == 0 ? bytes : 0);
    }
    if (length == 0) sink.append({}, bytes);
    sink.end_document();
    each(length);
  }
}

ImportResult mix_stores(std::span<MixedSource> sources, std::uint64_t seed, StoreSink& sink,
                        const ReportImport& report) {
  double weights = 0;
  std::uint64_t total = 0;
  for (const MixedSource& source : sources) {
    weights += source.weight();
    total += source.tokens();
    if (source.tokens() == 0) {
      fail(ErrorKind::data, "source {} has no tokens, so no share of the store can be its; leave it out",
           source.path().string());
    }
  }
  ImportResult result;
  ImportProgress progress{true, 0, total, 0};
  for (std::size_t i = 0; i < sources.size(); ++i) {
    MixedSource& source = sources[i];
    const auto share = static_cast<std::uint64_t>(std::llround(source.weight() / weights * static_cast<double>(total)));
    const std::uint64_t rounds = share / source.tokens();
    const std::uint64_t rest = share - rounds * source.tokens();
    const std::uint64_t tokens_before = sink.tokens();
    const std::uint64_t documents_before = sink.documents();
    const auto each = [&](std::uint64_t tokens) {
      progress.done += tokens;
      if (report && ++progress.documents % 1024 == 0) report(progress);
    };
    for (std::uint64_t round = 0; round < rounds; ++round) source.write(nullptr, sink, each);
    if (rest > 0) {
      const std::vector<bool> chosen = source.choose(rest, RandomKey(seed, fmt::format("mixture/source {}", i)));
      source.write(&chosen, sink, each);
    }
    result.sources.push_back({source.path(), source.tokens(), source.documents(), sink.tokens() - tokens_before,
                              sink.documents() - documents_before});
  }
  result.documents = sink.documents();
  result.tokens = sink.tokens();
  result.bytes = sink.text_bytes();
  return result;
}

}  // namespace ananke
