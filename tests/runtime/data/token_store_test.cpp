#include "runtime/data/token_store.h"

#include <gtest/gtest.h>
#include <hdf5.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "runtime/base/hash.h"
#include "runtime/base/random.h"
#include "runtime/data/document_source.h"
#include "tests/refusal.h"
#include "tests/runtime/data/listed_documents.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

using Tokens = std::vector<std::int32_t>;

void write_store(const std::filesystem::path& path, const Documents& documents, std::uint64_t vocabulary = 257) {
  TokenStoreWriter writer(path, "bytes", "abc", 2, vocabulary);
  for (const auto& document : documents) {
    writer.append(document);
    writer.end_document();
  }
  writer.finish("a test", "123", 42);
}

std::string refused(const std::filesystem::path& path) {
  const std::string message = refusal(ErrorKind::data, [&] { TokenStore store(path); });
  EXPECT_NAMES(message, path.string());
  return message;
}

// Changes a finished store as a stranger with h5py could.
template <class Change>
void edit(const std::filesystem::path& path, Change change) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  change(file);
  H5Fclose(file);
}

void overwrite(hid_t file, const char* dataset, hid_t memory, const void* values) {
  const hid_t set = H5Dopen2(file, dataset, H5P_DEFAULT);
  H5Dwrite(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
  H5Dclose(set);
}

TEST(TokenStore, KeepsItsTokenizerAndKnowsWhenItIsAnother) {
  TemporaryFolder folder;
  const std::string model = std::string("\0a model\xff", 9);
  TokenStoreWriter writer(folder / "s.h5", "sentencepiece", hash_hex(model), 2, 257);
  EXPECT_THROW(writer.keep_tokenizer("another"), Error);
  writer.keep_tokenizer(model);
  writer.finish("a test", "123", 0);
  EXPECT_EQ(TokenStore(folder / "s.h5").tokenizer_model(), model);
  edit(folder / "s.h5", [](hid_t file) { overwrite(file, "tokenizer_model", H5T_NATIVE_UINT8, "another!!"); });
  const TokenStore changed(folder / "s.h5");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { changed.tokenizer_model(); }), "the tokenizer in it has the hash");
  write_store(folder / "none.h5", {{1, 2}});
  EXPECT_EQ(TokenStore(folder / "none.h5").tokenizer_model(), "");
}

TEST(TokenStore, RefusesFilesThatAreNoStore) {
  TemporaryFolder folder;
  EXPECT_NAMES(refused(folder / "none.h5"), "No such file");
  refused(folder.path());
  EXPECT_NAMES(refused(folder.write("zero.h5", "")), "0 bytes");
  EXPECT_NAMES(refused(folder.write("text.h5", std::string(5000, 'x'))), "not an HDF5 file");
  EXPECT_NAMES(refused(folder.write("head.h5", "\x89HDF\r\n\x1a\n")), "superblock");
  const auto foreign = folder / "foreign.h5";
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
  H5Fclose(H5Fcreate(foreign.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access));
  H5Pclose(access);
  EXPECT_NAMES(refused(foreign), "no attribute format");
}

// What libhdf5 1.10 reads without a checksum, or from files that nobody has looked at, it is not asked to read.
TEST(TokenStore, RefusesWhatLibhdf5CannotCheck) {
  TemporaryFolder folder;
  const auto path = folder / "s.h5";
  write_store(path, {{1, 2, 3}, {4, 5}});
  std::string old = read_text(path);
  for (const char version : {0, 1, 2}) {
    old[8] = version;
    EXPECT_NAMES(refused(folder.write("old.h5", old)), fmt::format("superblock of version {}", int{version}));
  }
  edit(path, [](hid_t file) {
    H5Adelete(file, "source");
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(file, "source", type, space, H5P_DEFAULT, H5P_DEFAULT);
    const char* text = "a test";
    H5Awrite(attribute, type, static_cast<const void*>(&text));
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
  });
  EXPECT_NAMES(refused(path), "attribute source is text of variable length");
  write_store(path, {{1, 2, 3}, {4, 5}});
  edit(path, [](hid_t file) {
    H5Ldelete(file, "tokens", H5P_DEFAULT);
    H5Lcreate_external("other.h5", "tokens", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
  });
  EXPECT_NAMES(refused(path), "tokens is a link");
}

TEST(TokenStore, RefusesDataInOtherFiles) {
  TemporaryFolder folder;
  const auto path = folder / "s.h5";
  folder.write("raw", "12345");
  write_store(path, {{1, 2, 3}, {4, 5}});
  edit(path, [&](hid_t file) {
    H5Ldelete(file, "tokens", H5P_DEFAULT);
    const hsize_t size = 5;
    const hid_t space = H5Screate_simple(1, &size, nullptr);
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(creation, (folder / "raw").c_str(), 0, 5);
    H5Dclose(H5Dcreate2(file, "tokens", H5T_STD_U8LE, space, H5P_DEFAULT, creation, H5P_DEFAULT));
    H5Pclose(creation);
    H5Sclose(space);
  });
  EXPECT_NAMES(refused(path), "tokens has its data in other files");
}

TEST(TokenStore, RefusesAStoreCutAnywhere) {
  TemporaryFolder folder;
  write_store(folder / "good.h5", Documents(50, Tokens(3000, 7)));
  const std::string good = read_text(folder / "good.h5");
  for (const std::size_t percent : {0, 1, 10, 25, 50, 75, 90, 99}) {
    refused(folder.write("bad.h5", good.substr(0, good.size() * percent / 100)));
  }
  EXPECT_NAMES(refused(folder.write("bad.h5", good.substr(0, good.size() - 1))), "cut short");
}

TEST(TokenStore, NoticesDamageInsideTheFile) {
#ifdef __SANITIZE_ADDRESS__
  const __lsan::ScopedDisabler leaks;  // libhdf5 1.10 leaks 240 bytes for each chunk whose checksum does not fit
#endif
  TemporaryFolder folder;
  write_store(folder / "good.h5", Documents(40, Tokens(2000, 7)));
  const std::string good = read_text(folder / "good.h5");
  const RandomKey key(1, "damage");
  int noticed = 0;
  for (std::uint64_t trial = 0; trial < 150; ++trial) {
    std::string bad = good;
    const std::uint64_t place = key.below(trial, trial % 2 == 0 ? 2048 : good.size());
    bad[place] = static_cast<char>(bad[place] ^ 0x5A);
    try {
      const TokenStore store(folder.write("bad.h5", bad));
      for (std::uint64_t d = 0; d < store.info().documents; ++d) {
        Tokens out(store.length(d));
        store.read(d, 0, out);
        EXPECT_EQ(out, Tokens(2000, 7)) << "wrong tokens without a word, byte " << place;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      ++noticed;
    }
  }
  EXPECT_GT(noticed, 30);  // the rest hit bytes that nothing reads
}

TEST(TokenStore, RefusesContentThatContradictsItself) {
  TemporaryFolder folder;
  const auto path = folder / "s.h5";
  const auto with_offsets = [&](const std::vector<std::uint64_t>& offsets) {
    write_store(path, {{1, 2, 3}, {4, 5}});
    edit(path, [&](hid_t file) { overwrite(file, "document_offsets", H5T_NATIVE_UINT64, offsets.data()); });
    return refused(path);
  };
  EXPECT_NAMES(with_offsets({0, 6, 5}), "fall from 6 to 5");
  EXPECT_NAMES(with_offsets({1, 3, 5}), "run from 1 to 5");
  EXPECT_NAMES(with_offsets({0, 3, 4}), "there are 5 tokens");
  const auto without = [&](auto change) {
    write_store(path, {{1, 2, 3}, {4, 5}});
    edit(path, change);
    return refused(path);
  };
  EXPECT_NAMES(without([](hid_t file) { H5Adelete(file, "tokenizer"); }), "no attribute tokenizer");
  EXPECT_NAMES(without([](hid_t file) { H5Ldelete(file, "tokens", H5P_DEFAULT); }), "no dataset tokens");
  EXPECT_NAMES(without([](hid_t file) {
                 const std::uint64_t version = 2;
                 const hid_t attribute = H5Aopen(file, "version", H5P_DEFAULT);
                 H5Awrite(attribute, H5T_NATIVE_UINT64, &version);
                 H5Aclose(attribute);
               }),
               "version is 2");
  write_store(path, {{1, 2, 3}, {4, 5}});
  edit(path, [](hid_t file) {
    const Tokens tokens = {1, 2, 3, 257, 5};
    overwrite(file, "tokens", H5T_NATIVE_INT32, tokens.data());
  });
  const TokenStore store(path);
  Tokens out(2);
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { store.read(1, 0, out); }), "token 0 of document 1 is 257");
  out.resize(3);
  store.read(0, 0, out);
  EXPECT_EQ(out, (Tokens{1, 2, 3}));
}

TEST(TokenStore, AnUnfinishedOrRefusedWriteLeavesNothing) {
  TemporaryFolder folder;
  {
    TokenStoreWriter writer(folder / "s.h5", "bytes", "abc", -1, 10);
    writer.append(Tokens{1, 2});
    EXPECT_NAMES(refusal(ErrorKind::data, [&] { writer.append(Tokens{3, 10}); }), "token 10");
    EXPECT_NAMES(refusal(ErrorKind::data, [&] { writer.append(Tokens{-1}); }), "token -1");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_NAMES(refusal(ErrorKind::resource, [&] { TokenStoreWriter(folder / "no/s.h5", "bytes", "", -1, 10); }), "no/");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { TokenStoreWriter(folder / "s.h5", "bytes", "", -1, 0); }),
               "vocabulary of 0");
}

TEST(TokenStore, ReadsBackEveryRangeAcrossChunksInTheSmallestType) {
  const std::pair<std::uint64_t, std::size_t> types[] = {{256, 1}, {257, 2}, {65536, 2}, {65537, 4}, {2147483647, 4}};
  for (const auto& [vocabulary, bytes] : types) {
    TemporaryFolder folder;
    const RandomKey key(vocabulary, "tokens");
    Documents documents(8);
    std::uint64_t draw = 0;
    for (std::size_t d = 0; d < documents.size(); ++d) {
      documents[d].resize(d == 3 ? 0 : key.below(1000 + d, 40000));
      for (std::int32_t& token : documents[d]) token = static_cast<std::int32_t>(key.below(draw++, vocabulary));
    }
    write_store(folder / "s.h5", documents, vocabulary);
    edit(folder / "s.h5", [&](hid_t file) {
      const hid_t set = H5Dopen2(file, "tokens", H5P_DEFAULT);
      const hid_t type = H5Dget_type(set);
      EXPECT_EQ(H5Tget_size(type), bytes);
      H5Tclose(type);
      H5Dclose(set);
    });
    const TokenStore store(folder / "s.h5");
    EXPECT_EQ(store.info().documents, 8U);
    EXPECT_EQ(store.info().tokens, draw);
    EXPECT_EQ(store.info().tokenizer, "bytes");
    EXPECT_EQ(store.info().tokenizer_hash, "abc");
    EXPECT_EQ(store.info().eos_id, 2);
    EXPECT_EQ(store.info().vocabulary_size, vocabulary);
    EXPECT_EQ(store.info().source, "a test");
    EXPECT_EQ(store.info().source_hash, "123");
    EXPECT_EQ(store.info().source_bytes, 42U);
    for (std::size_t d = 0; d < documents.size(); ++d) {
      ASSERT_EQ(store.length(d), documents[d].size());
      const std::uint64_t begin = documents[d].size() / 3;
      Tokens out(documents[d].size() - begin);
      store.read(d, begin, out);
      EXPECT_TRUE(std::equal(out.begin(), out.end(), documents[d].begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  }
}

TEST(TokenStore, AsADocumentSourceIsBoundToItsContentAndTheModelsVocabulary) {
  TemporaryFolder folder;
  write_store(folder / "a.h5", {{1, 2, 3}});
  write_store(folder / "b.h5", {{1, 2, 3}, {4}});
  std::filesystem::create_directory(folder / "elsewhere");
  std::filesystem::copy(folder / "a.h5", folder / "elsewhere/c.h5");
  const auto identity = [&](const std::string& name) { return open_token_store(folder / name, 300)->identity(); };
  EXPECT_NE(identity("a.h5"), identity("b.h5"));
  EXPECT_EQ(identity("a.h5"), identity("elsewhere/c.h5"));
  EXPECT_NAMES(refusal(ErrorKind::config, [&] { open_token_store(folder / "a.h5", 256); }), "at least 257");
}

}  // namespace
}  // namespace ananke
