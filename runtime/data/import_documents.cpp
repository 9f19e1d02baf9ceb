#include "runtime/data/import_documents.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/random.h"
#include "runtime/base/read_file.h"
#include "runtime/base/replace_file.h"
#include "runtime/data/megatron_dataset.h"
#include "runtime/data/mix_stores.h"
#include "runtime/data/token_store.h"
#include "runtime/data/tokenize_in_order.h"
#include "runtime/data/tokenize_process.h"

namespace ananke {
namespace {

namespace fs = std::filesystem;

bool is_megatron(const fs::path& path, ImportFormat format) {
  const fs::path extension = path.extension();
  return format == ImportFormat::megatron ||
         (format == ImportFormat::by_name && (extension == ".idx" || extension == ".bin"));
}

std::uint64_t bytes_of(const fs::path& file) {
  std::error_code problem;
  const std::uintmax_t bytes = fs::file_size(file, problem);
  return problem ? 0 : bytes;
}

void check_output(const fs::path& output, const std::vector<fs::path>& files) {
  check_store_path(output);
  std::error_code none;
  for (const fs::path& file : files) {
    if (!fs::equivalent(file, output, none)) continue;
    fail(ErrorKind::data, "the token store {} would replace {}, one of the files to import; name another output",
         output.string(), file.string());
  }
}

// Of one source or, where they have no weights, of all.
class SourceImporter {
 public:
  SourceImporter(const ImportOptions& options, const ReportImport& report) : options_(options), report_(report) {
    const auto megatron = [&](const ImportSource& source) { return is_megatron(source.path, options.format); };
    megatron_ = holds_tokens(options);
    if (!megatron_ && std::any_of(options.sources.begin(), options.sources.end(), megatron)) {
      fail(ErrorKind::config, "text and Megatron's data sets cannot be imported together: import each by itself");
    }
    if (megatron_ && options.tokenizer.empty()) {
      use_bare_vocabulary();
      return;
    }
    if (options.tokenizer.empty()) fail(ErrorKind::config, "a tokenizer is needed to import text");
    for (int job = 0; job < (megatron_ ? 1 : options.jobs); ++job) {
      tokenizers_.push_back(make_tokenizer(options.tokenizer, options.tokenize_program));
    }
    tokenizer_ = tokenizers_[0]->info();
    if (tokenizer_.name == "sentencepiece") read_model();
  }

  const TokenizerInfo& tokenizer() const noexcept { return tokenizer_; }

  // Into the store itself, so that whoever has the store has the tokenizer.
  void keep_tokenizer(StoreSink& sink) const {
    if (!model_.empty()) sink.keep_tokenizer(model_);
  }

  // What is not there, or would be replaced, shows before anything is written.
  void check(std::span<const ImportSource> sources, const fs::path& output) {
    std::vector<fs::path> files = {options_.tokenizer};
    for (const ImportSource& source : sources) {
      if (megatron_) {
        const MegatronDataset dataset(source.path);
        files.insert(files.end(), {dataset.index_path(), dataset.data_path()});
        progress_.total += dataset.data_bytes();
        continue;
      }
      for (const TextFile& file : text_files(source.path, options_.format)) {
        files.push_back(file.path);
        progress_.total += bytes_of(file.path);
      }
    }
    check_output(output, files);
  }

  // Returns the hash of what it read.
  std::string import(std::span<const ImportSource> sources, StoreSink& sink) {
    const std::uint64_t before = progress_.done;
    if (megatron_) {
      Hasher hasher;
      for (const ImportSource& source : sources) import_megatron(source.path, sink, hasher);
      return hasher.hex();
    }
    std::vector<TextFile> files;
    for (const ImportSource& source : sources) {
      const std::vector<TextFile> found = text_files(source.path, options_.format);
      files.insert(files.end(), found.begin(), found.end());
    }
    TextReader reader(std::move(files));
    tokenize_in_order(reader, tokenizers_, options_.field, [&](const TokenBatch& batch) {
      std::size_t begin = 0;
      for (const TokenBatch::Piece& piece : batch.pieces) {
        sink.append(std::span(batch.tokens).subspan(begin, piece.end - begin), piece.text_bytes);
        if (piece.ends_document) end_document(sink);
        begin = piece.end;
      }
      report(before + batch.bytes_on_disk);
    });
    return reader.hash();
  }

 private:
  void read_model() {
    model_ = read_file(options_.tokenizer, ErrorKind::data);
    if (hash_hex(model_) != tokenizer_.hash) {
      fail(ErrorKind::data, "{} changes while it is read; import again", options_.tokenizer);
    }
  }
  void use_bare_vocabulary() {
    if (options_.vocabulary_size == 0) {
      fail(ErrorKind::config,
           "a Megatron data set does not say how large its vocabulary is: name it with --vocab-size, or the tokenizer "
           "that made it with --tokenizer");
    }
    if (options_.eos_id >= 0 && static_cast<std::uint64_t>(options_.eos_id) >= options_.vocabulary_size) {
      fail(ErrorKind::config, "the end-of-document token {} is not in a vocabulary of {}", options_.eos_id,
           options_.vocabulary_size);
    }
    tokenizer_.name = "unknown";
    tokenizer_.hash = hash_hex(fmt::format("unknown: {} tokens, {} ends", options_.vocabulary_size, options_.eos_id));
    tokenizer_.eos_id = options_.eos_id;
    tokenizer_.vocabulary_size = options_.vocabulary_size;
  }

  void import_megatron(const fs::path& path, StoreSink& sink, Hasher& hasher) {
    MegatronDataset dataset(path);
    const std::uint64_t before = progress_.done;
    std::vector<std::int32_t> tokens(std::size_t{64} << 10);
    MegatronDataset::Part part;
    std::uint64_t length = 0;
    while (dataset.next(tokenizer_.vocabulary_size, tokens, part)) {
      hasher.update(tokens.data(), part.count * sizeof(std::int32_t));
      length += part.count;
      sink.append(std::span(tokens).first(part.count), 0);
      if (!part.ends_document) continue;
      hasher.update(&length, sizeof length);
      length = 0;
      end_document(sink);
      if (progress_.documents % 1024 == 0) report(before + dataset.bytes_read());
    }
    report(before + dataset.bytes_read());
  }

  void end_document(StoreSink& sink) {
    sink.end_document();
    ++progress_.documents;
  }
  void report(std::uint64_t done) {
    progress_.done = done;
    if (report_) report_(progress_);
  }

  const ImportOptions& options_;
  const ReportImport& report_;
  bool megatron_ = false;
  std::vector<std::unique_ptr<Tokenizer>> tokenizers_;
  TokenizerInfo tokenizer_;
  std::string model_;  // of SentencePiece
  ImportProgress progress_;
};

// Whether they are weighted.
bool check_weights(const std::vector<ImportSource>& sources) {
  if (sources.empty()) fail(ErrorKind::data, "there is nothing to import: name files or folders");
  const bool weighted = sources[0].weight.has_value();
  for (const ImportSource& source : sources) {
    if (source.weight.has_value() != weighted) {
      fail(ErrorKind::config, "source {} has {} weight, but source {} has {}: give one to all sources, or to none",
           sources[0].path.string(), weighted ? "a" : "no", source.path.string(), weighted ? "none" : "one");
    }
    if (weighted && (!std::isfinite(*source.weight) || *source.weight <= 0)) {
      fail(ErrorKind::config, "source {}: its weight {} is no positive number", source.path.string(), *source.weight);
    }
  }
  return weighted;
}

void write_model(const fs::path& path, const std::string& model) {
  ReplacedFile target(path);
  const FileHandle file(std::fopen(target.partial().c_str(), "wb"), std::fclose);
  if (!file || std::fwrite(model.data(), 1, model.size(), file.get()) != model.size() || std::fflush(file.get()) != 0) {
    fail(ErrorKind::resource, "cannot write the tokenizer {}: {}", path.string(), std::strerror(errno));
  }
  target.commit();
}

StoreSink open_sink(const fs::path& path, const TokenizerInfo& info, bool keep_bytes) {
  return StoreSink(path, info.name, info.hash, info.eos_id, info.vocabulary_size, keep_bytes);
}

// Whatever was read: a store that no model can learn from is not made.
void check_not_empty(const StoreSink& sink, const ImportOptions& options, const fs::path& output) {
  if (sink.targets() > 0) return;
  fail(ErrorKind::data,
       "there is nothing to learn from in {}{}: {} documents, none of two tokens or more; {} is not made",
       options.sources[0].path.string(),
       options.sources.size() > 1 ? fmt::format(" and {} more", options.sources.size() - 1) : "", sink.documents(),
       output.string());
}

ImportResult import_weighted(const ImportOptions& options, const fs::path& output, const std::string& named,
                             SourceImporter& importer, const ReportImport& report) {
  std::vector<MixedSource> sources;
  std::string hashes;
  for (std::size_t i = 0; i < options.sources.size(); ++i) {
    const fs::path place =
        partial_name(output.parent_path() / fmt::format("{}.source-{}", output.filename().string(), i));
    StoreSink sink = open_sink(place, importer.tokenizer(), true);
    const std::string hash = importer.import({&options.sources[i], 1}, sink);
    sink.finish(options.sources[i].path.string(), hash);
    hashes += fmt::format("{} {:a}\n", hash, *options.sources[i].weight);
    sources.emplace_back(options.sources[i].path, *options.sources[i].weight, place, sink.take_document_bytes());
  }
  StoreSink sink = open_sink(output, importer.tokenizer(), false);
  ImportResult result = mix_stores(sources, options.seed, sink, report);
  check_not_empty(sink, options, output);
  importer.keep_tokenizer(sink);
  sink.finish(named, hash_hex(fmt::format("{}seed {}", hashes, options.seed)));
  return result;
}

}  // namespace

void check_store_path(const fs::path& output) {
  std::error_code none;
  if (fs::is_directory(output, none)) {
    fail(ErrorKind::resource, "cannot write the token store {}: it is a folder; name a file", output.string());
  }
  const fs::path folder = output.parent_path();
  if (folder.empty() || fs::is_directory(folder, none)) return;
  fail(ErrorKind::resource, "cannot write the token store {}: {} {}", output.string(), folder.string(),
       fs::exists(folder, none) ? "is no folder" : "does not exist; make that folder first");
}

bool holds_tokens(const ImportOptions& options) {
  return std::all_of(options.sources.begin(), options.sources.end(),
                     [&](const ImportSource& source) { return is_megatron(source.path, options.format); });
}

ImportResult import_documents(const ImportOptions& options, const fs::path& output, const ReportImport& report) {
  ANANKE_CHECK(options.jobs >= 1, "{} jobs", options.jobs);
  const bool weighted = check_weights(options.sources);
  std::string named;
  for (const ImportSource& source : options.sources) {
    named += (named.empty() ? "" : "\n") + source.path.string();
    if (weighted) named += fmt::format(":{}", *source.weight);
  }
  SourceImporter importer(options, report);
  importer.check(options.sources, output);
  remove_stale_partials(output);
  if (weighted) return import_weighted(options, output, named, importer, report);
  StoreSink sink = open_sink(output, importer.tokenizer(), false);
  const std::string hash = importer.import(options.sources, sink);
  check_not_empty(sink, options, output);
  importer.keep_tokenizer(sink);
  sink.finish(named, hash);
  return {sink.documents(), sink.tokens(), sink.text_bytes(), {}};
}

TokenizerInfo train_tokenizer(const ImportOptions& options, const TrainTokenizer& training, const fs::path& model) {
  check_weights(options.sources);
  std::vector<TextFile> files;
  double estimate = 0;
  for (const ImportSource& source : options.sources) {
    if (is_megatron(source.path, options.format)) {
      fail(ErrorKind::config, "a tokenizer is trained on text, but {} holds tokens", source.path.string());
    }
    for (const TextFile& file : text_files(source.path, options.format)) {
      files.push_back(file);
      estimate += static_cast<double>(bytes_of(file.path)) * (file.path.extension() == ".gz" ? 4.0 : 1.0);
    }
  }
  const RandomKey key(options.seed, "tokenizer sample");
  const double share = static_cast<double>(training.most_bytes) / std::max(estimate, 1.0);
  TokenizeProcess trainer(options.tokenize_program,
                          {"--train", std::to_string(training.vocabulary_size), "--type", training.type},
                          std::chrono::seconds(0));
  TextReader reader(std::move(files));
  TextBatch batch;
  std::uint64_t fed = 0;
  for (std::uint64_t number = 0; fed < training.most_bytes && reader.next(batch); ++number) {
    if (share < 1.0 && key.uniform(number) > share) continue;
    for (const std::string_view text : pieces_of(batch, options.field).texts) {
      trainer.feed(text);
      fed += text.size();
    }
  }
  write_model(model, trainer.train());
  return trainer.info();
}

}  // namespace ananke
