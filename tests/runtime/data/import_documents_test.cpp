#include "runtime/data/import_documents.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "runtime/base/random.h"
#include "runtime/base/replace_file.h"
#include "runtime/data/token_store.h"
#include "tests/refusal.h"
#include "tests/runtime/data/listed_documents.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

using Tokens = std::vector<std::int32_t>;

const std::filesystem::path program = std::filesystem::path(ANANKE_BINARY_DIR) / "bin/ananke-tokenize";

ImportOptions options_of(const std::vector<std::filesystem::path>& paths, const std::string& tokenizer = "bytes") {
  ImportOptions options;
  for (const auto& path : paths) options.sources.push_back({path, std::nullopt});
  options.tokenizer = tokenizer;
  options.tokenize_program = program;
  return options;
}

ImportOptions weighted(const std::vector<std::pair<std::filesystem::path, double>>& sources) {
  ImportOptions options = options_of({});
  for (const auto& [path, weight] : sources) options.sources.push_back({path, weight});
  return options;
}

Documents documents_of(const std::filesystem::path& path) {
  const TokenStore store(path);
  Documents documents;
  for (std::uint64_t d = 0; d < store.info().documents; ++d) {
    documents.emplace_back(store.length(d));
    store.read(d, 0, documents.back());
  }
  return documents;
}

std::size_t files_in(const std::filesystem::path& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

TEST(ImportDocuments, RefusesWhatItCannotImport) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "empty");
  folder.write("other/a.md", "x");
  const auto text = folder.write("a.txt", "x");
  const auto out = folder / "out/out.h5";
  std::filesystem::create_directory(folder / "out");
  const auto refused = [&](ErrorKind kind, const ImportOptions& options) {
    return refusal(kind, [&] { import_documents(options, out); });
  };
  EXPECT_NAMES(refused(ErrorKind::data, options_of({folder / "none.txt"})), "none.txt: No such file");
  EXPECT_NAMES(refused(ErrorKind::data, options_of({folder / "empty"})), "holds no *.txt");
  EXPECT_NAMES(refused(ErrorKind::data, options_of({folder / "other"})), "holds no *.txt");
  EXPECT_NAMES(refused(ErrorKind::data, options_of({})), "nothing to import");
  EXPECT_NAMES(refused(ErrorKind::data, options_of({text}, "no.model")), "no tokenizer 'no.model'");
  EXPECT_NAMES(refused(ErrorKind::config, options_of({text, folder / "x.idx"})), "cannot be imported together");
  EXPECT_NAMES(refused(ErrorKind::config, options_of({folder / "x.idx"}, "")), "--vocab-size");
  ImportOptions mixed = weighted({{text, 1.0}, {text, 2.0}});
  mixed.sources[1].weight.reset();
  EXPECT_NAMES(refused(ErrorKind::config, mixed), "give one to all sources");
  EXPECT_NAMES(refused(ErrorKind::config, weighted({{text, 0.0}})), "weight 0 is no positive number");
  EXPECT_NAMES(refused(ErrorKind::config, weighted({{text, NAN}})), "no positive number");
  EXPECT_EQ(files_in(folder / "out"), 0U);
  EXPECT_NAMES(refusal(ErrorKind::resource, [&] { import_documents(options_of({text}), folder / "no/out.h5"); }),
               "out.h5");
}

TEST(ImportDocuments, NeverReplacesWhatItReads) {
  TemporaryFolder folder;
  const auto text = folder.write("texts/a.txt", "the only copy");
  const auto refused = [&](const std::filesystem::path& input, const std::filesystem::path& output) {
    return refusal(ErrorKind::data, [&] { import_documents(options_of({input}), output); });
  };
  EXPECT_NAMES(refused(text, text), "would replace");
  EXPECT_NAMES(refused(folder / "texts", folder / "texts/../texts/a.txt"), "would replace");
  std::filesystem::create_symlink(text, folder / "link");
  EXPECT_NAMES(refused(text, folder / "link"), "would replace");
  EXPECT_NAMES(refusal(ErrorKind::resource, [&] { import_documents(options_of({text}), folder / "texts"); }),
               "is a folder");
  EXPECT_EQ(read_text(text), "the only copy");
}

TEST(ImportDocuments, MakesEveryFileADocumentOfItsBytes) {
  TemporaryFolder folder;
  folder.write("t/b.txt", "ab\xff");
  folder.write("t/a/z.txt", "");
  folder.write("t/a/y.txt", std::string("\0\n", 2));
  folder.write("t/skipped.md", "no");
  folder.write("t/c.jsonl", "{\"text\": \"j\"}\n");
  folder.write("one.md", "q");
  ImportProgress last;
  const ImportResult result = import_documents(options_of({folder / "t", folder / "one.md"}), folder / "out.h5",
                                               [&](const ImportProgress& progress) { last = progress; });
  EXPECT_EQ(result.documents, 5U);
  EXPECT_EQ(result.bytes, 7U);
  EXPECT_EQ(result.tokens, 12U);
  EXPECT_EQ(last.done, last.total);
  EXPECT_EQ(last.documents, 5U);
  EXPECT_EQ(documents_of(folder / "out.h5"),
            (Documents{{0, 10, 256}, {256}, {'a', 'b', 255, 256}, {'j', 256}, {'q', 256}}));
  const TokenStore store(folder / "out.h5");
  EXPECT_EQ(store.info().eos_id, 256);
  EXPECT_EQ(store.info().vocabulary_size, 257U);
  EXPECT_EQ(store.info().source_bytes, 7U);
}

// Many batches, long and short documents, so that jobs overtake each other.
std::vector<std::filesystem::path> varied_text(const TemporaryFolder& folder) {
  const RandomKey key(11, "text");
  std::string lines;
  for (std::uint64_t i = 0; i < 6000; ++i) {
    std::string text;
    for (std::uint64_t word = 0; word < key.below(i, 40); ++word) text += fmt::format("w{} ", key.below(i + word, 999));
    lines += fmt::format("{{\"text\": \"{}\\n\"}}\n", text);
  }
  std::string prose;
  for (std::uint64_t i = 0; i < 40000; ++i) prose += fmt::format("line {} of a long text\n", key.below(i, 999));
  return {folder.write("a.jsonl", lines), folder.write("b.txt", prose), folder.write("c.txt", "short")};
}

TEST(ImportDocuments, OrderDoesNotDependOnJobs) {
  TemporaryFolder folder;
  ImportOptions options = options_of(varied_text(folder), (folder / "m.model").string());
  train_tokenizer(options, {272, "unigram", std::uint64_t{200} << 10}, folder / "m.model");
  const auto import = [&](int jobs) {
    options.jobs = jobs;
    import_documents(options, folder / fmt::format("{}.h5", jobs));
    return documents_of(folder / fmt::format("{}.h5", jobs));
  };
  const Documents one = import(1);
  EXPECT_EQ(one.size(), 6002U);
  EXPECT_EQ(one.back().back(), 2);
  EXPECT_TRUE(import(3) == one);
  // The store has its tokenizer with it.
  EXPECT_EQ(TokenStore(folder / "3.h5").tokenizer_model(), read_text(folder / "m.model"));
  EXPECT_EQ(TokenStore(folder / "1.h5").info().source_hash, TokenStore(folder / "3.h5").info().source_hash);
}

TEST(ImportDocuments, TheFirstErrorInOrderIsReported) {
  TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 60000; ++i) lines += i == 20000 || i == 59999 ? "bad\n" : "{\"text\": \"some words\"}\n";
  for (const int jobs : {1, 4}) {
    ImportOptions options = options_of({folder.write("a.jsonl", lines)});
    options.jobs = jobs;
    EXPECT_NAMES(refusal(ErrorKind::data, [&] { import_documents(options, folder / "o.h5"); }), "line 20001,");
    EXPECT_EQ(files_in(folder.path()), 1U);
  }
}

TEST(ImportDocuments, ReportsATokenizerThatDies) {
  TemporaryFolder folder;
  const auto script = folder.write("dies",
                                   "#!/bin/sh\necho 'ananke-tokenize 1 x vocabulary=9 eos=1 hash=0'\n"
                                   "head -c 9 > /dev/null\necho out of luck >&2\nexit 7\n");
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  ImportOptions options = options_of({folder.write("a.txt", std::string(100000, 'x'))}, script.string());
  options.tokenize_program = script;
  options.jobs = 2;
  const std::string message = refusal(ErrorKind::data, [&] { import_documents(options, folder / "o.h5"); });
  EXPECT_NAMES(message, "exit code 7");
  EXPECT_NAMES(message, "out of luck");
  EXPECT_FALSE(std::filesystem::exists(folder / "o.h5"));
}

TEST(ImportDocuments, SharesMatchWeightsWithinOneDocument) {
  TemporaryFolder folder;
  const RandomKey key(5, "lengths");
  const auto source = [&](const std::string& name, std::uint64_t documents, char letter) {
    std::string lines;
    for (std::uint64_t i = 0; i < documents; ++i) {
      const std::string text(static_cast<std::size_t>(1 + key.below(i, 99)), letter);
      lines += fmt::format("{{\"text\": \"{}\"}}\n", text);
    }
    return folder.write(name, lines);
  };
  const auto rare = source("rare.jsonl", 50, 'r'), common = source("common.jsonl", 900, 'c');
  ImportOptions options = weighted({{rare, 3.0}, {common, 1.0}});
  const ImportResult result = import_documents(options, folder / "o.h5");
  const Documents documents = documents_of(folder / "o.h5");
  std::uint64_t total = result.sources[0].tokens + result.sources[1].tokens, used[2] = {}, bytes = 0;
  for (const auto& document : documents) {
    used[document[0] == 'c'] += document.size();
    bytes += document.size() - 1;
  }
  const double share[2] = {0.75 * static_cast<double>(total), 0.25 * static_cast<double>(total)};
  for (const int i : {0, 1}) {
    EXPECT_EQ(used[i], result.sources[static_cast<std::size_t>(i)].used_tokens);
    EXPECT_GE(static_cast<double>(used[i]) + 1, share[i]);
    EXPECT_LE(static_cast<double>(used[i]), share[i] + 100);
  }
  EXPECT_EQ(result.bytes, bytes);
  EXPECT_EQ(TokenStore(folder / "o.h5").info().source_bytes, bytes);
  EXPECT_GT(result.sources[0].used_documents, 50U);  // repeated
  EXPECT_LT(result.sources[1].used_documents, 900U);
  EXPECT_EQ(files_in(folder.path()), 3U);
  // The same seed chooses the same, another one other documents.
  import_documents(options, folder / "same.h5");
  EXPECT_EQ(documents_of(folder / "same.h5"), documents);
  options.seed = 1;
  import_documents(options, folder / "other.h5");
  EXPECT_NE(documents_of(folder / "other.h5"), documents);
  const auto nothing = folder.write("nothing.jsonl", "");
  EXPECT_NAMES(refusal(ErrorKind::data,
                       [&] {
                         import_documents(weighted({{rare, 1}, {nothing, 1}}), folder / "n.h5");
                       }),
               "nothing.jsonl has no tokens");
}

void write_megatron(const TemporaryFolder& folder) {
  const std::uint16_t data[] = {1, 2, 3, 4, 5};
  std::string index("MMIDIDX\0\0\1\0\0\0\0\0\0\0\10", 18);
  const auto put = [&](auto value) { index.append(reinterpret_cast<const char*>(&value), sizeof value); };
  put(std::uint64_t{2}), put(std::uint64_t{3});
  put(std::int32_t{2}), put(std::int32_t{3});
  put(std::int64_t{0}), put(std::int64_t{4});
  put(std::int64_t{0}), put(std::int64_t{1}), put(std::int64_t{2});
  folder.write("m.idx", index);
  folder.write("m.bin", std::string(reinterpret_cast<const char*>(data), sizeof data));
}

TEST(ImportDocuments, TakesMegatronsDataSets) {
  TemporaryFolder folder;
  write_megatron(folder);
  ImportOptions options = options_of({folder / "m.idx"}, "");
  options.vocabulary_size = 6;
  options.eos_id = 3;
  EXPECT_EQ(import_documents(options, folder / "o.h5").tokens, 5U);
  EXPECT_EQ(documents_of(folder / "o.h5"), (Documents{{1, 2}, {3, 4, 5}}));
  EXPECT_EQ(TokenStore(folder / "o.h5").info().eos_id, 3);
  options.vocabulary_size = 5;
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { import_documents(options, folder / "p.h5"); }), "token 5");
  EXPECT_FALSE(std::filesystem::exists(folder / "p.h5"));
  options.eos_id = 5;
  EXPECT_NAMES(refusal(ErrorKind::config, [&] { import_documents(options, folder / "p.h5"); }), "vocabulary of 5");
}

TEST(ImportDocuments, TidiesUpAfterImportsThatDied) {
  TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const std::string own_name = partial_name("x").string(), mark = ".x.partial.";
  const std::string host = own_name.substr(mark.size(), own_name.rfind('.') - mark.size());
  const auto partial = [&](const std::string& name, const std::string& of, pid_t process) {
    return folder.write(fmt::format(".{}.partial.{}.{}", name, of, process), "half");
  };
  const std::vector<std::filesystem::path> gone = {partial("o.h5", host, child), partial("o.h5.source-1", host, child),
                                                   partial(".o.h5.source-0.partial.x", host, child)};
  const std::vector<std::filesystem::path> kept = {partial("o.h5", host, ::getppid()), partial("o.h5", "far", child),
                                                   partial("o.h5", host.substr(0, host.rfind('.')) + ".1", child),
                                                   partial("other.h5", host, child)};
  import_documents(options_of({folder.write("a.txt", "x")}), folder / "o.h5");
  for (const auto& path : gone) EXPECT_FALSE(std::filesystem::exists(path)) << path;
  for (const auto& path : kept) EXPECT_TRUE(std::filesystem::exists(path)) << path;
}

}  // namespace
}  // namespace ananke
