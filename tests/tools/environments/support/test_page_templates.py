"""Addresses as templates: kinds of pages keep apart, pages of one kind fall together."""

import pytest

from learngraph.tools.environments.support.page_templates import HostMap, page_template

HOSTS = HostMap(
    {
        "admin": "http://10.0.0.7:7780/admin",
        "shop": "http://10.0.0.7:7780",
        "forum": "http://forum.example:9999/",
        "files": "file:///srv/pages/task.html",
    }
)


@pytest.mark.parametrize(
    ("url", "template"),
    [
        ("http://10.0.0.7:7780/admin/customer/index/edit/id/123/", "admin/customer/index/edit/id/{id}"),
        ("http://10.0.0.7:7780/", "shop"),
        ("HTTP://10.0.0.7:7780/Cart//", "shop/Cart"),
        ("http://10.0.0.7:7780/sony-wh-1000xm4-headphones.html", "shop/{slug}.html"),
        ("http://10.0.0.7:7780/office-products.html", "shop/office-products.html"),
        ("http://10.0.0.7:7780/iphone-12", "shop/{slug}"),
        ("http://forum.example:9999/f/books/81371/a-long-title-of-a-post", "forum/f/books/{id}/{slug}"),
        ("http://10.0.0.7:7780/CamelCaseProject/repo", "shop/CamelCaseProject/repo"),
        (
            "http://10.0.0.7:7780/byteblaze/a11y-webring.club/-/merge_requests/40",
            "shop/byteblaze/a11y-webring.club/-/merge_requests/{id}",
        ),
        ("http://10.0.0.7:7780/commit/9f8a61c2d4", "shop/commit/{hash}"),
        ("http://10.0.0.7:7780/commit/deadbeef", "shop/commit/deadbeef"),
        ("http://10.0.0.7:7780/o/6F9619FF-8B86-D011-B42D-00C04FC964FF", "shop/o/{hash}"),
        ("http://10.0.0.7:7780/x/eyJpZCI6MX0=", "shop/x/{hash}"),
        ("http://10.0.0.7:7780/report/2023-05-31", "shop/report/{date}"),
        ("file:///srv/pages/task.html", "files"),
        ("", "blank"),
        ("about:blank", "blank"),
        ("http://[broken", "unreadable"),
        ("http://10.0.0.7:port/", "unreadable"),
    ],
)
def test_path_segments_are_typed(url: str, template: str) -> None:
    assert page_template(url, HOSTS) == template


@pytest.mark.parametrize(
    ("query", "template"),
    [
        ("q=Laptop+Bag&p=3", "shop/s?p={id}&q=laptop bag"),
        ("q=phone", "shop/s?q=phone"),
        ("product_list_order=price&sort=Price&dir=asc", "shop/s?dir=asc&product_list_order={text}&sort=price"),
        ("id=77&from=2024-01-01&note=hello", "shop/s?from={date}&id={id}&note={text}"),
        ("form_key=AbC123&utm_source=x&filter[price]=1-2&sid=9&b", "shop/s?b"),
        ("id=1&id=2", "shop/s?id={id}"),
    ],
)
def test_a_query_keeps_what_is_looked_for_and_types_the_rest(query: str, template: str) -> None:
    assert page_template(f"http://10.0.0.7:7780/s?{query}", HOSTS) == template


def test_filters_are_cut_and_what_follows_stays() -> None:
    url = "http://10.0.0.7:7780/admin/sales/order/filter/c3RhdHVzPWE=/form_key/XX/page/2"
    assert page_template(url, HOSTS) == "admin/sales/order/page/{id}"


def test_hosts_are_configured_not_known() -> None:
    """The reference looks for port numbers anywhere in an address, and calls a shop on port 7770 wikipedia."""
    assert page_template("http://localhost:7770/x", HostMap({"shop": "http://localhost:7770"})) == "shop/x"
    assert page_template("http://localhost:7770/x") == "localhost:7770/x"
    assert page_template("http://localhost:17770/x", HostMap({"shop": "http://localhost:7770"})) == "localhost:17770/x"
    assert page_template("http://a.example/?next=:7770/", HostMap({"shop": "http://a.example:7770"})) == "a.example?next={text}"
    assert page_template("http://10.0.0.7:7780/administrator", HOSTS) == "shop/administrator"
    assert page_template("https://forum.example:443/f", HostMap({"forum": "https://forum.example"})) == "forum/f"
    assert page_template("http://user:secret@other.example/x") == "other.example/x"


def test_routes_in_fragments_are_paths_and_anchors_are_cut() -> None:
    assert page_template("http://10.0.0.7:7780/app#/cart/7", HOSTS) == "shop/app/cart/{id}"
    assert page_template("http://10.0.0.7:7780/app#top", HOSTS) == "shop/app"


def test_texts_are_resolved_to_addresses_of_the_sites_only() -> None:
    assert HOSTS.resolve("shop/cart?x=1") == "http://10.0.0.7:7780/cart?x=1"
    assert HOSTS.resolve(" forum ") == "http://forum.example:9999/"
    assert HOSTS.resolve("http://10.0.0.7:7780/admin/x") == "http://10.0.0.7:7780/admin/x"
    for text in ("http://example.org/", "elsewhere/x", "javascript:alert(1)", "file:///etc/passwd", "http://[broken", ""):
        with pytest.raises(ValueError, match="is no page of "):
            HOSTS.resolve(text)
