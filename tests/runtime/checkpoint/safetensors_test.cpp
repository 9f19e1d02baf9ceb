#include "runtime/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/base/random.h"
#include "runtime/checkpoint/safetensors_writer.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace ananke {
namespace {

std::string file_with(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, '\1');
}

std::string refused(const TemporaryFolder& folder, const std::string& bytes) {
  const auto path = folder.write("x.safetensors", bytes);
  const std::string message = refusal(ErrorKind::data, [&] { Safetensors::open(path); });
  EXPECT_NAMES(message, path.string());
  return message;
}

TEST(Safetensors, RefusesFilesThatAreNotOfTheFormat) {
  TemporaryFolder folder;
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { Safetensors::open(folder / "none"); }), "none");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { Safetensors::open(folder.path()); }), "model.safetensors");
  EXPECT_NAMES(refused(folder, ""), "0 bytes");
  EXPECT_NAMES(refused(folder, "1234567"), "7 bytes");
  EXPECT_NAMES(refused(folder, std::string(100, '\0')), "not JSON");
  EXPECT_NAMES(refused(folder, std::string(100, '\xff')), "header");
  EXPECT_NAMES(refused(folder, "plain text that is somewhat longer than a header"), "header");
  EXPECT_NAMES(refused(folder, file_with("[]", 0)), "not JSON");
  EXPECT_NAMES(refused(folder, file_with("{\"a\"", 0)), "line 1, column 5");
}

TEST(Safetensors, ReadsElementsBeyondTwoToThe31) {
  TemporaryFolder folder;
  constexpr std::int64_t count = (std::int64_t{1} << 31) + 4;
  const std::string header = fmt::format(R"({{"b":{{"dtype":"BF16","shape":[{0}],"data_offsets":[0,{1}]}},)"
                                         R"("f":{{"dtype":"F32","shape":[2,{2}],"data_offsets":[{1},{3}]}}}})",
                                         count, 2 * count, count / 2, 6 * count);
  const auto path = folder.write("x.safetensors", file_with(header, 0));
  const auto data = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, data + 6 * count);  // holes take no room
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const std::uint16_t half = 0x3f00;
  const float value = 1.25f;
  file.seekp(static_cast<std::streamoff>(data + 2 * (count - 1)));
  file.write(reinterpret_cast<const char*>(&half), sizeof half);
  file.seekp(static_cast<std::streamoff>(data + 6 * count - 4));
  file.write(reinterpret_cast<const char*>(&value), sizeof value);
  file.close();
  const Safetensors tensors = Safetensors::open(path);
  std::array<float, 3> last{};
  tensors.read_f32("b", last, count - 3);
  EXPECT_EQ(last, (std::array<float, 3>{0, 0, 0.5f}));
  tensors.read_f32("f", last, count - 3);
  EXPECT_EQ(last, (std::array<float, 3>{0, 0, 1.25f}));
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { tensors.read_f32("f", last, count - 2); }), "f");
}

TEST(Safetensors, RefusesHeadersThatContradictThemselvesOrTheFile) {
  TemporaryFolder folder;
  const auto one = [&](const std::string& entry, std::size_t bytes) {
    return refused(folder, file_with("{\"w\":" + entry + "}", bytes));
  };
  EXPECT_NAMES(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 7), "cut short");
  EXPECT_NAMES(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 9), "belong to none");
  EXPECT_NAMES(one(R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})", 12), "gap");
  EXPECT_NAMES(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", 8), "12 bytes");
  EXPECT_NAMES(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8), "data_offsets");
  EXPECT_NAMES(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", 8), "shape");
  EXPECT_NAMES(one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", 8), "shape");
  EXPECT_NAMES(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0), "shape");
  EXPECT_NAMES(one(R"({"dtype":"F32","shape":[0,9223372036854775808],"data_offsets":[0,0]})", 0), "shape");
  EXPECT_NAMES(one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})", 8), "F33");
  EXPECT_NAMES(one(R"({"dtype":"F32","shape":[2]})", 8), "data_offsets");
  EXPECT_NAMES(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1})", 8), "nothing else");
  EXPECT_NAMES(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551616]})", 8), "data_offsets");
  EXPECT_NAMES(one("7", 0), "tensor w");
  const std::string w = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_NAMES(refused(folder, file_with("{\"a\":" + w + ",\"b\":" + w + "}", 8)), "overlap");
  EXPECT_NAMES(refused(folder, file_with("{\"a\":" + w + ",\"a\":" + w + "}", 8)), "twice");
}

TEST(Safetensors, SurvivesEveryFlippedBitAndEveryLength) {
  TemporaryFolder folder;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int32_t> ids = {7, 8};
  write_safetensors(folder / "good", {{"w", {2, 3}, values}, {"ids", {2}, ids}});
  const std::string good = read_text(folder / "good");
  const auto attempt = [&](const std::string& bytes) {  // reads or refuses by our own error; sanitizers watch
    const auto path = folder.write("bad", bytes);
    try {
      const Safetensors file = Safetensors::open(path);
      for (const std::string& name : file.names()) {
        if (file.info(name).dtype == "F32") file.read_f32(name);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data) << error.what();
    }
  };
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    attempt(bad);
  }
  for (std::size_t length = 0; length < good.size(); ++length) {
    const auto path = folder.write("bad", good.substr(0, length));
    refusal(ErrorKind::data, [&] { Safetensors::open(path); });
  }
  refusal(ErrorKind::data, [&] { Safetensors::open(folder.write("bad", good + "x")); });
}

TEST(Safetensors, RefusesReadsThatDoNotFit) {
  TemporaryFolder folder;
  const std::vector<float> values = {1, 2, 3};
  write_safetensors(folder / "f", {{"model.norm.weight", {3}, values}});
  const Safetensors file = Safetensors::open(folder / "f");
  std::vector<float> out(2);
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { file.read_f32("model.norm.weigth", out); }),
               "nearest name is model.norm.weight");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { file.read_f32("model.norm.weight", out, 2); }),
               "3 elements, asked for 2 from 2");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { file.read_f32("model.norm.weight", out, -1); }), "from -1");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { file.read_i32("model.norm.weight"); }), "is F32");
  file.read_f32("model.norm.weight", out, 1);
  EXPECT_EQ(out, (std::vector<float>{2, 3}));
}

TEST(Safetensors, ConvertsEveryFloatTypeExactly) {
  TemporaryFolder folder;
  const std::string header =
      R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[16,20]},)"
      R"("h":{"dtype":"F16","shape":[6],"data_offsets":[20,32]},"n":{"dtype":"F32","shape":[0,5],"data_offsets":[32,32]},)"
      R"("s":{"dtype":"F32","shape":[],"data_offsets":[32,36]}})";
  const double doubles[] = {-0.5, 1e300};
  const std::uint16_t halves[] = {0x3F80, 0xC049, 0x3C00, 0xC000, 0x0001, 0x8000, 0x7C00, 0x7BFF};
  const float scalar = 0.1F;
  std::string bytes = file_with(header, 0);
  bytes.append(reinterpret_cast<const char*>(doubles), 16).append(reinterpret_cast<const char*>(halves), 16);
  bytes.append(reinterpret_cast<const char*>(&scalar), 4);
  const Safetensors file = Safetensors::open(folder.write("f", bytes));
  EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "b", "h", "n", "s"}));
  EXPECT_EQ(file.read_f32("a"), (std::vector<float>{-0.5F, INFINITY}));
  EXPECT_EQ(file.read_f32("b"), (std::vector<float>{1.0F, -3.140625F}));
  const std::vector<float> h = file.read_f32("h");
  EXPECT_EQ(h, (std::vector<float>{1.0F, -2.0F, 0x1p-24F, -0.0F, INFINITY, 65504.0F}));
  EXPECT_TRUE(std::signbit(h[3]));
  EXPECT_TRUE(file.read_f32("n").empty());
  EXPECT_EQ(file.read_f32("s"), std::vector<float>{0.1F});
}

TEST(Safetensors, ReadsWideIntegersOnlyWhereTheyFit) {
  TemporaryFolder folder;
  const auto with = [&](std::int64_t second) {
    std::string bytes = file_with(R"({"i":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})", 0);
    const std::int64_t values[] = {-7, second};
    bytes.append(reinterpret_cast<const char*>(values), 16);
    return Safetensors::open(folder.write("f", bytes)).read_i32("i");
  };
  EXPECT_EQ(with(2147483647), (std::vector<std::int32_t>{-7, 2147483647}));
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { with(2147483648); }), "element 1 is 2147483648");
}

TEST(Safetensors, WritesTheSameBytesInAnyOrderAndReadsThemBack) {
  TemporaryFolder folder;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int32_t> ids = {7, 8};
  write_safetensors(folder / "a", {{"w", {2, 3}, values}, {"ids", {2}, ids}});
  write_safetensors(folder / "b", {{"ids", {2}, ids}, {"w", {2, 3}, values}});
  EXPECT_EQ(read_text(folder / "a"), read_text(folder / "b"));
  const Safetensors file = Safetensors::open(folder / "a");
  EXPECT_EQ(file.read_f32("w"), values);
  EXPECT_EQ(file.read_i32("ids"), ids);
  EXPECT_EQ(to_string(file.info("w").shape), "[2, 3]");
  EXPECT_NAMES(refusal(ErrorKind::data, [&] { write_safetensors(folder / "c", {{"w", {2}, values}}); }), "6 elements");
  EXPECT_NAMES(refusal(ErrorKind::data,
                       [&] {
                         write_safetensors(folder / "c", {{"w", {6}, values}, {"w", {6}, values}});
                       }),
               "twice");
  EXPECT_NAMES(refusal(ErrorKind::resource, [&] { write_safetensors(folder / "no/c", {{"w", {6}, values}}); }), "no/");
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
}

TEST(SafetensorsWriter, RefusesMisuse) {
  TemporaryFolder folder;
  const std::vector<float> values = {1, 2, 3};
  const std::vector<std::int32_t> ids = {1};
  const auto entries = [] { return std::vector<SafetensorsEntry>{{"w", SafetensorsType::f32, {3}}}; };
  EXPECT_NAMES(refusal(ErrorKind::data,
                       [&] {
                         SafetensorsWriter(folder / "f", {{"", SafetensorsType::f32, {1}}});
                       }),
               "reserved");
  EXPECT_NAMES(refusal(ErrorKind::internal,
                       [&] {
                         SafetensorsWriter file(folder / "f", entries());
                         file.append(values);
                         file.append(values);
                       }),
               "past the end");
  EXPECT_NAMES(refusal(ErrorKind::internal,
                       [&] {
                         SafetensorsWriter file(folder / "f", entries());
                         file.append(std::span(values).first(2));
                         file.finish();
                       }),
               "1 elements of w were not written");
  EXPECT_NAMES(refusal(ErrorKind::internal, [&] { SafetensorsWriter(folder / "f", entries()).append(ids); }),
               "w is F32");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "what was not finished leaves nothing";
}

TEST(SafetensorsWriter, WritesInPiecesWhatIsWrittenInOneGo) {
  TemporaryFolder folder;
  std::vector<float> values(200'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 7;
  const std::vector<float> none;
  write_safetensors(folder / "one", {{"a", {0}, none}, {"b", {100'000, 2}, values}, {"c", {0, 3}, none}});
  SafetensorsWriter file(folder / "pieces", {{"a", SafetensorsType::f32, {0}},
                                             {"b", SafetensorsType::f32, {100'000, 2}},
                                             {"c", SafetensorsType::f32, {0, 3}}});
  file.append(std::span(values).first(1));
  file.append(std::span(values).subspan(1, 150'000));
  file.append(std::span(values).subspan(150'001));
  file.finish();
  EXPECT_EQ(read_text(folder / "pieces"), read_text(folder / "one"));
}

TEST(SafetensorsWriter, RoundsToNearestEvenInBf16AndKeepsWhatIsNoNumber) {
  const auto rounded = [](std::uint32_t bits) { return to_bf16(std::bit_cast<float>(bits)); };
  EXPECT_EQ(rounded(0x3f800000), 0x3f80);  // 1
  EXPECT_EQ(rounded(0x3f807fff), 0x3f80);  // below the middle
  EXPECT_EQ(rounded(0x3f808000), 0x3f80);  // the middle: to even
  EXPECT_EQ(rounded(0x3f818000), 0x3f82);  // the middle: to even, upwards
  EXPECT_EQ(rounded(0x3f808001), 0x3f81);  // above the middle
  EXPECT_EQ(rounded(0xbf818000), 0xbf82);
  EXPECT_EQ(rounded(0x7f7fffff), 0x7f80);  // the largest float is nearer to infinity
  EXPECT_EQ(rounded(0xff800000), 0xff80);
  EXPECT_EQ(rounded(0x80000000), 0x8000);
  EXPECT_EQ(rounded(0x00008000), 0x0000);  // subnormal
  EXPECT_EQ(rounded(0x7f800001), 0x7fc0);  // a NaN whose fraction would be cut off
  EXPECT_EQ(rounded(0xffffffff), 0xffff);
  TemporaryFolder folder;
  const std::vector<float> values = {1, std::numeric_limits<float>::quiet_NaN(), -3.140625f, 1e-40f};
  SafetensorsWriter file(folder / "f", {{"w", SafetensorsType::bf16, {4}}});
  file.append(values);
  file.finish();
  const Safetensors read = Safetensors::open(folder / "f");
  EXPECT_EQ(read.info("w").dtype, "BF16");
  const std::vector<float> back = read.read_f32("w");
  EXPECT_EQ(back[0], 1);
  EXPECT_TRUE(std::isnan(back[1]));
  EXPECT_EQ(back[2], -3.140625f);
  EXPECT_NEAR(back[3], 1e-40f, 1e-40f);
}

TEST(Safetensors, ReadsShardsOfAFolderAndRefusesAnIndexThatLies) {
  TemporaryFolder folder;
  const std::vector<float> a = {1}, b = {2, 3};
  write_safetensors(folder / "one.safetensors", {{"a", {1}, a}});
  write_safetensors(folder / "two.safetensors", {{"b", {2}, b}});
  const auto index = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", R"({"weight_map":)" + map + "}");
  };
  index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  const Safetensors good = Safetensors::open(folder.path());
  EXPECT_EQ(good.read_f32("a"), a);
  EXPECT_EQ(good.read_f32("b"), b);
  const auto refused_index = [&](const std::string& map) {
    index(map);
    return refusal(ErrorKind::data, [&] { Safetensors::open(folder.path()); });
  };
  EXPECT_NAMES(refused_index(R"({"a":"one.safetensors","b":"one.safetensors"})"), "tensor b");
  EXPECT_NAMES(refused_index(R"({"a":"../one.safetensors"})"), "not the name of a file");
  EXPECT_NAMES(refused_index(R"({"a":"gone.safetensors"})"), "gone.safetensors");
  EXPECT_NAMES(refused_index("[]"), "weight_map");
  write_safetensors(folder / "two.safetensors", {{"b", {2}, b}, {"c", {1}, a}});
  EXPECT_NAMES(refused_index(R"({"a":"one.safetensors","b":"two.safetensors"})"), "lists 1");
  write_safetensors(folder / "two.safetensors", {{"b", {2}, b}, {"a", {1}, a}});
  EXPECT_NAMES(refused_index(R"({"a":"one.safetensors","b":"two.safetensors"})"), "another file");
}

}  // namespace
}  // namespace ananke
