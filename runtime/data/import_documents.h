// Text, JSON lines and Megatron's indexed data sets into a token store.
//
// Sources without weights: all their documents once, source after source. With weights, which are shares of the store's
// tokens: the store is as long as all sources together; a source's documents are repeated as a whole as often as its
// share asks for, and of the last round a part is taken, chosen by the seed, up to the first document that reaches the
// share. So every share is met within one document, and the same seed chooses the same documents.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/text_reader.h"
#include "runtime/data/tokenizer.h"

namespace ananke {

// Throws Error(resource) where no token store can be written under this name: it is a folder, or its folder is missing.
void check_store_path(const std::filesystem::path& output);

enum class ImportFormat : std::uint8_t {
  by_name,  // *.jsonl and *.jsonl.gz are JSON lines, *.idx and *.bin Megatron's, all else text
  text,
  json_lines,
  megatron,
};

struct ImportSource {
  std::filesystem::path path;    // a file, or a folder: what it and its folders hold, sorted by path
  std::optional<double> weight;  // of all sources or of none
};

struct ImportOptions {
  std::vector<ImportSource> sources;
  ImportFormat format = ImportFormat::by_name;
  std::string field = "text";  // of JSON lines
  std::string tokenizer;       // bytes, or a SentencePiece model's file; may be empty for Megatron's
  std::filesystem::path tokenize_program = ananke::tokenize_program();
  int jobs = 1;            // tokenizers at work at once
  std::uint64_t seed = 0;  // for weights
  // Megatron's data sets do not say: needed without a tokenizer.
  std::uint64_t vocabulary_size = 0;
  std::int64_t eos_id = -1;
};

struct ImportProgress {
  bool mixing = false;     // sources with weights, after all of them are tokenized: counts are tokens
  std::uint64_t done = 0;  // bytes of files
  std::uint64_t total = 0;
  std::uint64_t documents = 0;
};
using ReportImport = std::function<void(const ImportProgress&)>;

struct ImportedSource {
  std::filesystem::path path;
  std::uint64_t tokens = 0;  // that it has
  std::uint64_t documents = 0;
  std::uint64_t used_tokens = 0;  // that the store has of it
  std::uint64_t used_documents = 0;
};

struct ImportResult {
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  std::uint64_t bytes = 0;  // of text; 0 where unknown (Megatron's)
  std::vector<ImportedSource> sources;
};

// Replaces `output`, once all of it is on disk; memory is bounded. The result depends on nothing but sources, tokenizer
// and seed. Throws Error(data) naming the file that cannot be used or that `output` would replace, Error(config) for
// options that contradict each other, Error(resource) where `output` cannot be written.
ImportResult import_documents(const ImportOptions& options, const std::filesystem::path& output,
                              const ReportImport& report = {});

// Whether all sources are Megatron's: tokens already, so that no tokenizer is needed.
bool holds_tokens(const ImportOptions& options);

// The files of text of one source. Throws Error(data) naming one that does not exist or a folder that holds none.
std::vector<TextFile> text_files(const std::filesystem::path& source, ImportFormat format);

struct TrainTokenizer {
  int vocabulary_size = 0;
  std::string type = "bpe";                            // or unigram
  std::uint64_t most_bytes = std::uint64_t{64} << 20;  // of text; of more, the seed chooses which
};
// Trains a SentencePiece model on the sources' text and writes it to `model`. Throws as import_documents.
TokenizerInfo train_tokenizer(const ImportOptions& options, const TrainTokenizer& training,
                              const std::filesystem::path& model);

}  // namespace ananke
