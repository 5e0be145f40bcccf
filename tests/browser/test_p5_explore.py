import json, time
from datetime import UTC, datetime, timedelta
from browsers import Browser
from endpoints import site, report, fresh_id
from gateways import Rig, condition
from pipelines import create_pipeline, record_lag
from sluiceway_gateway.channels.model import Phase
from test_dashboard_states import create_lagging_group
from waiting import until

OUT="/tmp/P5shots/"
def shot(b, name):
    time.sleep(0.5)
    b.driver.save_screenshot(OUT+name+".png")

def test_explore(browser: Browser, rig: Rig) -> None:
    rig.clock.now = datetime.now(UTC) - timedelta(seconds=40)
    create_lagging_group(rig, 1000)
    long = "x"*100 + "." + "y"*140
    l = site(rig, long[:240], labels=None) if False else site(rig, long[:220])
    l.member(role="writer", group="Ladeprogramm für Übersichten – "+"ü"*120)
    g = l.member(group="получатель-"+"я"*200, title="名前のとても長い仕事")
    l.detach(g, "error", cause="java.lang.RuntimeException: "+"z"*800)
    sites = create_pipeline(rig) if False else {}
    w = site(rig, "weather")
    for n in range(12):
        w.detach(w.member(group=f"g{n}"), "error", cause="full")
    rig.put("broken"); rig.observe("broken", Phase.FAILED, conditions=(condition("TopicVanished","The topic broken-1234 does not exist any more. Restore it, or delete the channel.", rig.clock()),))
    rig.put("prov")
    for size,tag in (((1280,800),"w"),((360,740),"n"),((1920,1080),"xl"),((700,500),"m")):
        browser.resize(*size)
        for scheme in ("light","dark") if tag in "wn" else ("light",):
            browser.color_scheme(scheme)
            browser.open(rig.url); browser.one("[data-row-link]")
            shot(browser, f"over-{tag}-{scheme}")
            for ch in ("flights", long[:220], "weather", "broken"):
                browser.open(f"{rig.url}/#/channels/{ch}"); browser.one("h1"); 
                shot(browser, f"{ch[:8]}-{tag}-{scheme}")
            browser.open(f"{rig.url}/#/channels/{long[:220]}?tab=endpoints"); browser.one("tbody"); shot(browser, f"ends-{tag}-{scheme}")
            browser.open(f"{rig.url}/#/channels/{long[:220]}?tab=graph"); browser.one(".sentences"); shot(browser, f"graph-{tag}-{scheme}")
            print(tag, scheme, browser.driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]"))
    browser.resize(1280,800)
    for path in ("", "channels/flights", "channels/weather"):
        browser.open(f"{rig.url}/#/{path}"); browser.one("main h1"); time.sleep(.5)
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media":"print","features":[{"name":"prefers-color-scheme","value":"dark"}]})
        shot(browser, "print-"+(path.replace("/","-") or "over"))
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media":""})
    browser.open(f"{rig.url}/#/channels/flights"); browser.button("Reset offsets…").click(); shot(browser,"reset")
    browser.open(f"{rig.url}/#/channels/flights"); browser.button("Positions by partition").click(); shot(browser,"positions")
